"""Bodies of ``/v1/check``: from JSON bytes to a check that is ready to be decided.

Reading a check is a pure function of its bytes, and callers repeat a few thousand of them, so finished checks are
remembered by their exact text. Whatever is wrong raises InvalidRequest with the field's name; nothing wrong is remembered.
"""

from __future__ import annotations

from typing import Final, NamedTuple, cast

import msgspec

from sluicegate.bounds import (
    BATCH_MAX,
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
from sluicegate.doors.http.templates import PlainBatch, Templates
from sluicegate.errors import InvalidRequest
from sluicegate.rules.facts import Facts
from sluicegate.stores.base import Charge
from sluicegate.stores.keys import escape, subject_of

__all__ = ["Check", "Checks", "PlainCheck", "as_check", "check_facts"]

_IDENTIFYING: Final = ("host", "ip", "user", "api_key", "tenant", "tier", "domain", "method")
_LONG: Final = ("path", "route")
_MAPS: Final = ("headers", "descriptors", "attrs")

_FIELDS: Final = {
    **{name: f"policy.{name}" for name in POLICY_FIELDS},
    **{name: f"facts.{name}" for name in Facts.__struct_fields__},
    **{name: name for name in ("key", "facts", "policy", "cost", "peek", "receipt")},
}


_KEY_PART: Final = subject_of((("key", ""),))
"""What a subject of one dimension ``key`` begins with; the escaped value follows."""

_CUT_SEEN_BYTES: Final = 1_024
"""How far into a batch its way of separating items is looked for."""


class _Json(msgspec.Struct, forbid_unknown_fields=True):
    key: str | msgspec.UnsetType = msgspec.UNSET
    facts: Facts | msgspec.UnsetType = msgspec.UNSET
    policy: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    cost: int = 1
    peek: bool = False
    receipt: bool = False


class PlainCheck(NamedTuple):
    """An inline check that charges and asks for no receipt: the form that is decided fastest.

    ``key``: the whole key of its counter, made once. A tuple, because a batch takes its columns apart with ``zip``.
    """

    policy: InlinePolicy
    key: str
    cost: int

    @property
    def charge(self) -> Charge:
        """What the store is asked."""
        counter = self.policy.counter
        return counter, self.key[len(counter.prefix) :], self.cost


class Check(NamedTuple):
    """Any other check. Either ``policy`` and ``charge`` are set (inline) or ``facts`` is."""

    policy: InlinePolicy | None
    charge: Charge | None
    facts: Facts | None
    cost: int
    peek: bool
    receipt: bool


def as_check(plain: PlainCheck) -> Check:
    """The same check in the general form."""
    return Check(plain.policy, plain.charge, None, plain.cost, peek=False, receipt=False)


class Checks:
    """Reads checks. The fast way in is ``checks.memo.young.get(raw)``; on None ask ``read``."""

    def __init__(self, policies: InlinePolicies) -> None:
        self.memo: Memo[PlainCheck | Check] = Memo(CHECKS_MEMO_MAX, CHECK_MEMO_BYTES_MAX)
        self._pieces: Memo[PlainCheck] = Memo(CHECKS_MEMO_MAX, CHECK_MEMO_BYTES_MAX)
        self._templates = Templates(self._read_plain)
        self._policies = policies
        self._decode = msgspec.json.Decoder(_Json).decode

    def read(self, raw: bytes) -> PlainCheck | Check:
        """The check that these bytes mean. Raises InvalidRequest."""
        check = self.memo.recall(raw)
        if check is None:
            check = self._read(raw)
            self.memo.remember(raw, check)
        return check

    def read_batch(self, batch: bytes) -> PlainBatch | list[PlainCheck] | None:
        """The checks of a JSON array, if all are plain and can be read without parsing it; None: read it as JSON.

        An array of objects is cut at ``},{`` without looking at strings or nesting. That is exact all the same: every piece
        used is, put back in braces, a complete JSON object that was read before; and such objects, joined by commas
        in brackets, are an array of just them. A cut in a wrong place gives pieces that are no objects.
        """
        alike = self._templates.match(batch)
        if alike is not None:
            return alike
        if batch[:2] != b"[{" or batch[-2:] != b"}]":
            return None
        comma = b", " if b"}, {" in batch[:_CUT_SEEN_BYTES] else b","
        pieces = batch[2:-2].split(b"}%b{" % comma, BATCH_MAX)
        found = [self._piece(piece) for piece in pieces]
        if None in found or len(found) > BATCH_MAX:
            return None
        checks = cast("list[PlainCheck]", found)
        policy, _, cost = checks[0]
        if len(checks) > 1 and all(check.policy is policy and check.cost == cost for check in checks):
            self._templates.notice(b"{%b}" % pieces[0], comma, policy, cost)
        return checks

    def _piece(self, piece: bytes) -> PlainCheck | None:
        check = self._pieces.recall(piece)
        if check is None:
            check = self._read_plain(b"{%b}" % piece)
            if check is not None:
                self._pieces.remember(piece, check)
        return check

    def _read_plain(self, raw: bytes) -> PlainCheck | None:
        try:
            check = self._read(raw)
        except InvalidRequest:
            return None
        return check if isinstance(check, PlainCheck) else None

    def _read(self, raw: bytes) -> PlainCheck | Check:
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
            check_facts(body.facts)
            return Check(None, None, body.facts, body.cost, body.peek, body.receipt)
        if body.key is msgspec.UNSET:
            raise InvalidRequest("key", "missing: send key and policy, or facts")
        if body.policy is msgspec.UNSET:
            raise InvalidRequest("policy", "missing: a key needs the policy to decide by")
        _check_text("key", body.key, KEY_BYTES_MAX)
        policy = self._policies.get(bytes(body.policy))
        plain = PlainCheck(policy, policy.counter.prefix + _KEY_PART + escape(body.key), body.cost)
        if body.peek or body.receipt:
            return Check(policy, plain.charge, None, body.cost, body.peek, body.receipt)
        return plain


def check_facts(facts: Facts) -> None:
    """Raises InvalidRequest for a fact that is empty or too long, or for too many of them."""
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
