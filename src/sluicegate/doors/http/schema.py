"""Bodies of ``/v1/check``: from JSON bytes to a check that is ready to be decided.

Reading a check is a pure function of its bytes, and callers repeat a few thousand of them, so finished checks are
remembered by their exact text. Whatever is wrong raises InvalidRequest with the field's name; nothing wrong is remembered.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sluicegate.bounds import (
    CHECK_MEMO_BYTES_MAX,
    CHECKS_MEMO_MAX,
    COST_MAX,
    FACT_BYTES_MAX,
    FACT_ENTRIES_MAX,
    KEY_BYTES_MAX,
)
from sluicegate.doors.http.bad_json import decode, refuse_duplicates
from sluicegate.doors.http.memo import Memo
from sluicegate.doors.http.policies import POLICY_FIELDS, InlinePolicies, InlinePolicy
from sluicegate.errors import InvalidRequest
from sluicegate.rules.facts import Facts
from sluicegate.stores.base import Charge
from sluicegate.stores.keys import subject_of

__all__ = ["Check", "Checks"]

_IDENTIFYING: Final = ("host", "ip", "user", "api_key", "tenant", "tier", "domain", "method")
_LONG: Final = ("path", "route")
_MAPS: Final = ("headers", "descriptors", "attrs")

_FIELDS: Final = {
    **{name: f"policy.{name}" for name in POLICY_FIELDS},
    **{name: f"facts.{name}" for name in Facts.__struct_fields__},
    **{name: name for name in ("key", "facts", "policy", "cost", "peek", "receipt")},
}


class _Json(msgspec.Struct, forbid_unknown_fields=True):
    key: str | msgspec.UnsetType = msgspec.UNSET
    facts: Facts | msgspec.UnsetType = msgspec.UNSET
    policy: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    cost: int = 1
    peek: bool = False
    receipt: bool = False


class Check:
    """One check. Either ``policy`` and ``charge`` are set (inline) or ``facts`` is.

    ``plain``: inline, charged, without a receipt; the form that batches decide fastest.
    """

    __slots__ = ("charge", "cost", "facts", "peek", "plain", "policy", "receipt")

    def __init__(self, body: _Json, policy: InlinePolicy | None, charge: Charge | None) -> None:
        self.policy = policy
        self.charge = charge
        self.facts = body.facts if isinstance(body.facts, Facts) else None
        self.cost = body.cost
        self.peek = body.peek
        self.receipt = body.receipt
        self.plain = policy is not None and not body.peek and not body.receipt


class Checks:
    """Reads checks. The fast way in is ``checks.known(raw)``; on None ask ``read``."""

    def __init__(self, policies: InlinePolicies) -> None:
        self.memo: Memo[Check] = Memo(CHECKS_MEMO_MAX, CHECK_MEMO_BYTES_MAX)
        self._policies = policies
        self._decode = msgspec.json.Decoder(_Json).decode

    def read(self, raw: bytes) -> Check:
        """The check that these bytes mean. Raises InvalidRequest."""
        check = self.memo.recall(raw)
        if check is None:
            check = self._read(raw)
            self.memo.remember(raw, check)
        return check

    def _read(self, raw: bytes) -> Check:
        body = decode(self._decode, raw, _FIELDS)
        refuse_duplicates(raw)
        if not (0 if body.peek else 1) <= body.cost <= COST_MAX:
            hint = ' (0 is for "peek": true)' if body.cost == 0 else ""
            raise InvalidRequest("cost", f"must be 1 to {COST_MAX}, got {body.cost}{hint}")
        if body.peek and body.receipt:
            raise InvalidRequest("receipt", "a peek charges nothing, so there is nothing to give a receipt for")
        if isinstance(body.facts, Facts):
            for name in ("key", "policy"):
                if getattr(body, name) is not msgspec.UNSET:
                    raise InvalidRequest(name, "does not go with facts: send key and policy, or facts")
            _check_facts(body.facts)
            return Check(body, None, None)
        if body.key is msgspec.UNSET:
            raise InvalidRequest("key", "missing: send key and policy, or facts")
        if body.policy is msgspec.UNSET:
            raise InvalidRequest("policy", "missing: a key needs the policy to decide by")
        _check_text("key", body.key, KEY_BYTES_MAX)
        policy = self._policies.get(bytes(body.policy))
        return Check(body, policy, (policy.counter, subject_of((("key", body.key),)), body.cost))


def _check_facts(facts: Facts) -> None:
    for name in _IDENTIFYING:
        value = getattr(facts, name)
        if value is not None:
            _check_text(f"facts.{name}", value, KEY_BYTES_MAX)
    for name in _LONG:
        value = getattr(facts, name)
        if value is not None:
            _check_text(f"facts.{name}", value, FACT_BYTES_MAX)
    for name in _MAPS:
        entries: dict[str, str] | None = getattr(facts, name)
        if entries is None:
            continue
        if len(entries) > FACT_ENTRIES_MAX:
            raise InvalidRequest(f"facts.{name}", f"has {len(entries)} entries, at most {FACT_ENTRIES_MAX} are taken")
        for key, value in entries.items():
            if not key or len(key) > KEY_BYTES_MAX or len(value) > FACT_BYTES_MAX:
                limits = f"names of 1 to {KEY_BYTES_MAX} and values of at most {FACT_BYTES_MAX} characters"
                raise InvalidRequest(f"facts.{name}", f"takes {limits}")


def _check_text(field: str, value: str, bytes_max: int) -> None:
    if not value:
        raise InvalidRequest(field, "is empty" + ("; leave out what is not known" if field != "key" else ""))
    if len(value) > bytes_max or len(value.encode()) > bytes_max:
        raise InvalidRequest(field, f"is longer than {bytes_max} bytes")
