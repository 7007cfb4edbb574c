"""The way to the counters of nodes that share no store: every node that lives is asked at the address that it reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import httpx
import msgspec

from sluicegate.bounds import NODE_ANSWER_BYTES_MAX, NODE_ASK_S, NODE_LIVES_S, NODES_ASKED_AT_ONCE, PAGE_SIZE_MAX
from sluicegate.clock import US_PER_S, Clock
from sluicegate.control.counters import Asker, NodeAnswer, Operation, Question
from sluicegate.control.model import NodeRow
from sluicegate.control.nodes import Nodes

__all__ = ["NodeApi"]

_PATHS: Final[dict[Operation, str]] = {
    "read": "/v1/counters/read",
    "grant": "/v1/counters/grant",
    "reset": "/v1/counters/reset",
    "refund": "/v1/refund",
    "explain": "/v1/explain",
}
_EVERYWHERE: Final = frozenset(("0.0.0.0", "::", ""))  # noqa: S104 -- compared with, not bound
_OK: Final = 200


class NodeApi:
    """A ``Reach``. ``token``: the API token of the nodes, which all have in common.

    A node lives that reported in the last ``NODE_LIVES_S``. It must listen at an address of its own: at one that means all of a machine's
    it cannot be found.
    """

    def __init__(
        self, nodes: Nodes, clock: Clock, token: str, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._nodes = nodes
        self._clock = clock
        self._room = asyncio.Semaphore(NODES_ASKED_AT_ONCE)
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {token}"}, transport=transport, timeout=NODE_ASK_S, trust_env=False
        )

    async def open(self, question: Question) -> Asker:  # noqa: ARG002 - any node may have any counter
        """See ``Reach``. Raises Unavailable."""
        return _Asker([row async for row in self._living()], self._answer)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def _living(self) -> AsyncIterator[NodeRow]:
        since_us = self._clock.now_us() - NODE_LIVES_S * US_PER_S
        token = ""
        while True:
            page = await self._nodes.page(page_size=PAGE_SIZE_MAX, page_token=token)
            for row in page.items:
                if row.last_seen_us >= since_us:
                    yield row
            token = page.next_token
            if not token:
                return

    async def _answer(self, row: NodeRow, operation: Operation, body: bytes) -> NodeAnswer:
        node = row.report.node
        url = row.report.listeners.get("api", "")
        problem = _unreachable(url)
        if problem:
            return NodeAnswer(node, 0, error=problem)
        try:
            async with self._room, asyncio.timeout(NODE_ASK_S):
                status, data = await self._post(url + _PATHS[operation], body)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, msgspec.DecodeError, ValueError) as error:
            what = f"no answer in {NODE_ASK_S:g} s" if isinstance(error, TimeoutError) else str(error)
            return NodeAnswer(node, 0, error=what or type(error).__name__)
        if status == _OK:
            return NodeAnswer(node, status, data)
        errors = data.get("errors") or [{}]
        pointer = str(errors[0].get("pointer", "")).removeprefix("#")
        return NodeAnswer(node, status, error=str(data.get("detail", f"it answered {status}")), pointer=pointer)

    async def _post(self, url: str, body: bytes) -> tuple[int, dict[str, Any]]:
        async with self._client.stream("POST", url, content=body) as response:
            content = b""
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > NODE_ANSWER_BYTES_MAX:
                    raise ValueError(f"the answer has more than {NODE_ANSWER_BYTES_MAX} bytes")
            return response.status_code, msgspec.json.decode(content, type=dict[str, Any])


class _Asker:
    """Asks these nodes, all at once."""

    def __init__(
        self, rows: Sequence[NodeRow], answer: Callable[[NodeRow, Operation, bytes], Awaitable[NodeAnswer]]
    ) -> None:
        self._rows = rows
        self._answer = answer

    async def ask(self, operation: Operation, question: Question) -> Sequence[NodeAnswer]:
        body = msgspec.json.encode(question)
        return await asyncio.gather(*[self._answer(row, operation, body) for row in self._rows])


def _unreachable(url: str) -> str:
    """Why a node cannot be asked there; "" where it can."""
    if not url:
        return "it reports no API listener"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        return f"its API listener is no URL: {error}"
    if parsed.scheme not in ("http", "https"):
        return f"its API listens at {url}, which other machines cannot reach"
    if parsed.host in _EVERYWHERE:
        return f"its API listens at {url}, which is no address that it can be found at; give --api one"
    return ""
