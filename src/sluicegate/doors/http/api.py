"""The routes of the decision API: translation only. Every decision is the limiter's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from sluicegate.bounds import BATCH_MAX, KEY_BYTES_MAX
from sluicegate.clock import Clock
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.http.answers import check_document, check_status
from sluicegate.doors.http.bad_json import BadJson, decode, refuse_duplicates
from sluicegate.doors.http.inline import InlineDecider
from sluicegate.doors.http.policies import InlinePolicies
from sluicegate.doors.http.respond import Reply, json_reply, problem_reply
from sluicegate.doors.http.schema import Check, Checks, PlainCheck, as_check
from sluicegate.doors.http.site import Route
from sluicegate.doors.http.stats import HttpStats
from sluicegate.doors.http.templates import PlainBatch
from sluicegate.doors.problem import FieldError, problem, temporary_reduced_capacity
from sluicegate.errors import InvalidRequest, ReceiptUnknown, StoreError
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.limiter import Limiter

__all__ = ["DecisionApi"]

_NO_STORE: Final = "Cache-Control: no-store\r\n"


class _Refund(msgspec.Struct, forbid_unknown_fields=True):
    decision_id: str


class DecisionApi:
    """Handlers by route, for a ``Site``.

    ``ready`` gives readiness and its JSON detail, ``metrics`` a content type and the exposition; both are called per
    request and must be quick. ``namespace`` sets apart the inline counters of services that share a store.
    """

    def __init__(
        self,
        limiter: Limiter,
        headers: RateHeaders,
        stats: HttpStats,
        clock: Clock,
        *,
        ready: Callable[[], tuple[bool, dict[str, object]]],
        metrics: Callable[[], tuple[str, bytes]],
        namespace: str = "default",
    ) -> None:
        self._limiter = limiter
        self._headers = headers
        self._stats = stats
        self._clock = clock
        self._ready = ready
        self._metrics = metrics
        self._checks = Checks(InlinePolicies(headers, namespace))
        self._inline = InlineDecider(limiter)
        self._decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
        self._decode_refund = msgspec.json.Decoder(_Refund).decode

    def routes(self, *, health_only: bool = False) -> dict[str, Route]:
        """The routes by path; ``health_only`` leaves out ``/v1``."""
        deciding = (
            Route("/v1/check", {"POST": self.check}),
            Route("/v1/check/batch", {"POST": self.batch}),
            Route("/v1/refund", {"POST": self.refund}),
        )
        operating = (
            Route("/livez", {"GET": self.live}, guarded=False),
            Route("/readyz", {"GET": self.ready}, guarded=False),
            Route("/healthz", {"GET": self.ready}, guarded=False),
            Route("/metrics", {"GET": self.metrics}, guarded=False),
        )
        return {route.path: route for route in (operating if health_only else deciding + operating)}

    # ------------------------------------------------------------------ checks

    def check(self, body: bytes) -> Reply:
        """``POST /v1/check``."""
        try:
            check = self._checks.memo.young.get(body) or self._checks.read(body)
            if isinstance(check, PlainCheck):
                if self._headers.delta_only and self._limiter.enabled:
                    return self._plain(check)
                check = as_check(check)
            decision = self._decide(check)
        except InvalidRequest as error:
            return problem_reply(400, self._bad(error))
        except StoreError as error:
            return _store_down(error)
        status = check_status(decision, check)
        lines = self._headers.block(decision, self._clock.now_us() if self._headers.needs_now else 0).decode("ascii")
        if status == 503:
            return problem_reply(503, temporary_reduced_capacity(decision), lines)
        return json_reply(status, check_document(decision, check).encode(), lines)

    def _plain(self, check: PlainCheck) -> Reply:
        (admitted, remaining, wait_us), text = self._inline.one(check)
        lines = self._headers.delta_lines(check.policy.texts, remaining, wait_us, refused=not admitted)
        return json_reply(200 if admitted else 429, text.encode(), lines)

    def batch(self, body: bytes) -> Reply:
        """``POST /v1/check/batch``: each item as if it came alone, in order; one bad item spoils no other."""
        plain = self._checks.read_batch(body) if self._limiter.enabled else None
        if plain is not None:
            return self._batch_reply(self._many(plain))
        try:
            items = self._items(body)
        except InvalidRequest as error:
            return problem_reply(400, self._bad(error))
        return self._batch_reply(self._mixed(map(bytes, items)))

    def _many(self, checks: PlainBatch | list[PlainCheck]) -> list[str]:
        try:
            return self._inline.alike(checks) if isinstance(checks, PlainBatch) else self._inline.many(checks)
        except StoreError as error:
            count = len(checks.keys) if isinstance(checks, PlainBatch) else len(checks)
            return [_store_down(error)[2].decode()] * count

    def _mixed(self, items: Iterable[bytes]) -> list[str]:
        """Any items in order; neighbours that are plain go to the store together."""
        texts: list[str] = []
        run: list[PlainCheck] = []
        enabled = self._limiter.enabled
        for raw in items:
            try:
                check = self._checks.read(raw)
                if isinstance(check, PlainCheck) and enabled:
                    run.append(check)
                    continue
            except InvalidRequest as error:
                text = self._bad(error).decode()
                texts += self._many(run) if run else []
            else:
                texts += self._many(run) if run else []
                text = self._item(as_check(check) if isinstance(check, PlainCheck) else check)
            texts.append(text)
            run = []
        return texts + (self._many(run) if run else [])

    def _item(self, check: Check) -> str:
        try:
            decision = self._decide(check)
        except InvalidRequest as error:
            return self._bad(error).decode()
        except StoreError as error:
            return _store_down(error)[2].decode()
        status = check_status(decision, check)
        if status == 503:
            return temporary_reduced_capacity(decision).decode()
        return f'{{"status":{status},{check_document(decision, check)[1:]}'

    def _decide(self, check: Check) -> Decision:
        charge = check.charge
        if charge is not None:
            counter, subject, cost = charge
            return self._limiter.check_counter(counter, subject, cost, peek=check.peek, receipt=check.receipt)
        if check.facts is None:
            raise InvalidRequest("facts", "missing")
        return self._limiter.check(check.facts, check.cost, peek=check.peek, receipt=check.receipt)

    # ------------------------------------------------------------------ refunds

    def refund(self, body: bytes) -> Reply:
        """``POST /v1/refund``: give back what the decision with this id charged; good once."""
        try:
            counters = self._limiter.refund(self._decision_id(body), strict=True)
        except ReceiptUnknown as error:
            return problem_reply(404, problem(404, str(error), [FieldError.of(error.field, error.message)]))
        except InvalidRequest as error:
            return problem_reply(400, self._bad(error))
        except StoreError as error:
            return _store_down(error)
        return json_reply(200, b'{"refunded":%d}' % counters)

    # ------------------------------------------------------------------ operations

    def live(self, _body: bytes) -> Reply:
        """``GET /livez``: the process answers; nothing else is asked."""
        return json_reply(200, b'{"live":true}', _NO_STORE)

    def ready(self, _body: bytes) -> Reply:
        """``GET /readyz`` and ``/healthz``: whether traffic is wanted here, with the reasons."""
        ready, detail = self._ready()
        return json_reply(200 if ready else 503, msgspec.json.encode({"ready": ready, **detail}), _NO_STORE)

    def metrics(self, _body: bytes) -> Reply:
        """``GET /metrics``."""
        content_type, text = self._metrics()
        return 200, f"Content-Type: {content_type}\r\n{_NO_STORE}", text

    def _items(self, body: bytes) -> list[msgspec.Raw]:
        items = decode(self._decode_items, body, {})
        if len(items) > BATCH_MAX:
            raise InvalidRequest("", f"the batch has {len(items)} items, at most {BATCH_MAX} are taken")
        return items

    def _decision_id(self, body: bytes) -> str:
        refund = decode(self._decode_refund, body, {"decision_id": "decision_id"})
        refuse_duplicates(body)
        if not 0 < len(refund.decision_id) <= KEY_BYTES_MAX:
            raise InvalidRequest("decision_id", "is no id that a decision carried")
        return refund.decision_id

    def _batch_reply(self, texts: list[str]) -> Reply:
        self._stats.batch_items += len(texts)
        return json_reply(200, f"[{','.join(texts)}]".encode())

    def _bad(self, error: InvalidRequest) -> bytes:
        self._stats.bad_requests["json" if isinstance(error, BadJson) else "field"] += 1
        detail = str(error) if error.field else error.message
        return problem(400, detail, [FieldError.of(error.field, error.message)])


def _store_down(error: StoreError) -> Reply:
    # Only where no failure policy has taken the decision over: the store is closed or full, with nothing charged.
    return problem_reply(503, problem(503, f"the counters are out of reach: {error}"), "Retry-After: 1\r\n")
