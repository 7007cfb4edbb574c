"""``/v1/counters/...`` and ``/v1/explain``: what operators ask of one node. They are there only where the API has a token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec

from sluicegate.doors.http.bad_json import decode, refuse_duplicates
from sluicegate.doors.http.faults import fault_reply
from sluicegate.doors.http.replies import Replies, store_down
from sluicegate.doors.http.respond import Reply, json_reply
from sluicegate.doors.http.schema import check_facts
from sluicegate.doors.http.site import Answer, Route
from sluicegate.doors.http.stats import HttpStats
from sluicegate.errors import InvalidRequest, StoreError
from sluicegate.limiter.counters import CounterState, SubjectOfRule, Target
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts

__all__ = ["CountersApi"]

_NO_STORE: Final = "Cache-Control: no-store\r\n"


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    facts: Facts | None = None
    rule: str | None = None
    subject: str | None = None
    tier: str | None = None
    tokens: int | None = None
    cost: int = 1


_FIELDS: Final = {
    **{name: f"facts.{name}" for name in Facts.__struct_fields__},
    **{name: name for name in _Body.__struct_fields__},
}
_decode: Final = msgspec.json.Decoder(_Body).decode

_Work = Callable[[_Body], Awaitable[dict[str, Any]]]


class CountersApi:
    """Routes for a ``Site``. Every answer is given exactly once, within the deadlines of the store."""

    def __init__(self, limiter: Limiter, replies: Replies, stats: HttpStats) -> None:
        self._limiter = limiter
        self._replies = replies
        self._stats = stats
        # The loop itself refers to tasks only weakly.
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self) -> tuple[Route, ...]:
        """``POST`` to each of them."""
        work: dict[str, _Work] = {
            "/v1/counters/read": self._read,
            "/v1/counters/grant": self._grant,
            "/v1/counters/reset": self._reset,
            "/v1/counters/forget": self._forget,
            "/v1/explain": self._explain,
        }
        return tuple(Route(path, later={"POST": partial(self._start, path, call)}) for path, call in work.items())

    def _start(self, path: str, work: _Work, body: bytes, answer: Answer) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(path, work, body, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, path: str, work: _Work, body: bytes, answer: Answer) -> None:
        try:
            found = await work(_body_of(body))
            reply: Reply = json_reply(200, msgspec.json.encode(found), _NO_STORE)
        except InvalidRequest as error:
            reply = self._replies.refused_request(error)
        except StoreError as error:
            reply = store_down(error)
        except Exception:  # noqa: BLE001 - a fault of ours must not leave the client without an answer
            reply = fault_reply(self._stats, path)
        answer(reply)

    async def _read(self, body: _Body) -> dict[str, Any]:
        _refuse_tokens(body)
        target, rule = _target_of(body)
        return _counters(await self._limiter.aread(target, rule=rule))

    async def _grant(self, body: _Body) -> dict[str, Any]:
        if body.tokens is None:
            raise InvalidRequest("tokens", "missing: how many to give back at most")
        target, rule = _target_of(body)
        try:
            return _counters(await self._limiter.agrant(target, body.tokens, rule=rule))
        except InvalidRequest as error:
            raise InvalidRequest("tokens", error.message) from None if error.field == "cost" else error

    async def _reset(self, body: _Body) -> dict[str, Any]:
        _refuse_tokens(body)
        target, rule = _target_of(body)
        return {"reset": await self._limiter.areset(target, rule=rule)}

    async def _forget(self, body: _Body) -> dict[str, Any]:
        _refuse_tokens(body)
        if body.facts is None and body.rule is None and body.subject is None:
            self._limiter.forget()
        else:
            target, rule = _target_of(body)
            self._limiter.forget(target, rule=rule)
        return {"forgotten": True}

    async def _explain(self, body: _Body) -> dict[str, Any]:
        _refuse_tokens(body)
        if body.facts is None or body.rule is not None or body.subject is not None:
            raise InvalidRequest("facts", "missing: a request is explained by what is known of it")
        check_facts(body.facts)
        return (await self._limiter.aexplain(body.facts, body.cost)).to_dict()


def _body_of(raw: bytes) -> _Body:
    body = decode(_decode, raw, _FIELDS)
    refuse_duplicates(raw)
    return body


def _target_of(body: _Body) -> tuple[Target, str | None]:
    """Which counters are meant, and of which rule only."""
    if body.facts is not None:
        if body.subject is not None or body.tier is not None:
            raise InvalidRequest("subject" if body.subject is not None else "tier", "does not go with facts")
        check_facts(body.facts)
        return body.facts, body.rule
    if body.rule is None or body.subject is None:
        raise InvalidRequest("facts", "missing: send facts, or rule and subject")
    return SubjectOfRule(body.rule, body.subject, body.tier), None


def _refuse_tokens(body: _Body) -> None:
    if body.tokens is not None:
        raise InvalidRequest("tokens", "is for grants only")


def _counters(states: list[CounterState]) -> dict[str, Any]:
    return {"counters": [state.to_dict() for state in states]}
