"""The way to the counters of nodes that share no store: every node that lives is asked at the address that it reports.

A report is the word of whoever holds a token of a node, and the question carries the API token of all nodes. So a node is asked only
where its reports come from, or where the operator says that nodes are: a stolen token of a node neither yields the API token nor aims
the requests of the service at others.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx
import msgspec

from sluicegate.bounds import NODE_ANSWER_BYTES_MAX, NODE_ASK_S, NODE_LIVES_S, NODES_ASKED_AT_ONCE, PAGE_SIZE_MAX
from sluicegate.clock import US_PER_S, Clock
from sluicegate.control.counters import Asker, NodeAnswer, Operation, Question
from sluicegate.control.model import UP_AUTH, NodeRow
from sluicegate.control.nodes import Nodes
from sluicegate.doors.http.peers import OPERATION_PATHS

__all__ = ["NodeApi", "OwnNode"]

_OK: Final = 200

Ip: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class _NotAsked(Exception):
    """The message says why."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a node is asked: at an address, under the name that it gave."""

    url: httpx.URL
    name: str

    def at(self, address: Ip, path: str) -> httpx.URL:
        return self.url.copy_with(host=str(address), path=path)


class NodeApi:
    """A ``Reach``. ``token``: the API token of the nodes, which all have in common.

    A node lives that reported in the last ``NODE_LIVES_S``. It must listen at an address of its own: at one that means all of a machine's
    it cannot be found. It is asked at the address that its last report came from (with loopback all of loopback), a node that was started with the
    service at any of this machine, and every node at an address of ``allow``; elsewhere it is not, and the answer says so. Where reports
    come through a proxy, or over a Unix socket, ``allow`` must say where nodes are. A name is looked up once, and the address asked is the one that
    was judged. Certificates are verified.
    """

    def __init__(
        self,
        nodes: Nodes,
        clock: Clock,
        token: str,
        *,
        allow: Sequence[Network] = (),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._allow = tuple(allow)
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
        try:
            status, data = await self._asked(row, OPERATION_PATHS[operation], body)
        except (_NotAsked, httpx.HTTPError, httpx.InvalidURL, OSError, msgspec.DecodeError, ValueError) as error:
            what = f"no answer in {NODE_ASK_S:g} s" if isinstance(error, TimeoutError) else str(error)
            return NodeAnswer(node, 0, error=what or type(error).__name__)
        if status == _OK:
            return NodeAnswer(node, status, data)
        errors = data.get("errors") or [{}]
        pointer = str(errors[0].get("pointer", "")).removeprefix("#")
        return NodeAnswer(node, status, error=str(data.get("detail", f"it answered {status}")), pointer=pointer)

    async def _asked(self, row: NodeRow, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        place = _place(row.report.listeners.get("api", ""))
        async with self._room, asyncio.timeout(NODE_ASK_S):
            address = await self._address(row, place)
            return await self._post(place, address, path, body)

    async def _address(self, row: NodeRow, place: _Place) -> Ip:
        """The address to ask a node at. Raises _NotAsked, and OSError for a name that is not known."""
        found = [_ip(place.name)]
        if found == [None]:
            looked_up = await asyncio.get_running_loop().getaddrinfo(place.name, None, type=socket.SOCK_STREAM)
            found = [_ip(str(sockaddr[0])) for *_, sockaddr in looked_up]
        for address in found:
            if address is not None and self._may_ask(row, address):
                return address
        heard = row.source_ip or "a Unix socket"
        raise _NotAsked(
            f"its API listens at {place.url}, and its reports come from {heard}: it cannot be asked, unless --node-api-allow holds that address"
        )

    def _may_ask(self, row: NodeRow, address: Ip) -> bool:
        if address.is_unspecified:
            return False
        if any(address in network for network in self._allow):
            return True
        if row.auth == UP_AUTH:
            return address.is_loopback or _is_of_this_machine(address)
        source = _ip(row.source_ip)
        return source is not None and (address == source or (address.is_loopback and source.is_loopback))

    async def _post(self, place: _Place, address: Ip, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        headers = {"Host": place.url.netloc.decode("ascii")}
        # The certificate is that of the name, whatever its address.
        more = {"sni_hostname": place.name}
        url = place.at(address, path)
        return await self._sent(url, body, headers=headers, extensions=more)

    async def _sent(self, url: httpx.URL, body: bytes, **more: Any) -> tuple[int, dict[str, Any]]:
        async with self._client.stream("POST", url, content=body, **more) as response:
            content = b""
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > NODE_ANSWER_BYTES_MAX:
                    raise ValueError(f"the answer has more than {NODE_ANSWER_BYTES_MAX} bytes")
            return response.status_code, msgspec.json.decode(content, type=dict[str, Any])


class OwnNode(NodeApi):
    """As ``NodeApi``, of the one node that was started with the service: asked at a Unix socket, ``path``, that is there for nothing else.

    Nodes of other machines are not asked, and the answer names them.
    """

    def __init__(self, nodes: Nodes, clock: Clock, token: str, path: Path) -> None:
        super().__init__(nodes, clock, token, transport=httpx.AsyncHTTPTransport(uds=str(path)))

    async def open(self, question: Question) -> Asker:  # noqa: ARG002 - as there
        rows = [row async for row in self._living()]
        # One of the start before is among them for a while, and the socket is that of the newest.
        own = sorted((row for row in rows if row.auth == UP_AUTH), key=lambda row: row.last_seen_us)[-1:]
        return _Asker([*own, *(row for row in rows if row.auth != UP_AUTH)], self._answer)

    async def _asked(self, row: NodeRow, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if row.auth != UP_AUTH:
            raise _NotAsked("this service has no API token of the nodes: start it with --api-token")
        async with asyncio.timeout(NODE_ASK_S):
            return await self._sent(httpx.URL("http://localhost", path=path), body)


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


def _place(url: str) -> _Place:
    """Where a listener is, of which nothing but scheme, host and port is taken. Raises _NotAsked where nobody can be asked there."""
    if not url:
        raise _NotAsked("it reports no API listener")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise _NotAsked(f"its API listener is no URL: {error}") from error
    if parsed.scheme not in ("http", "https"):
        raise _NotAsked(f"its API listens at {url}, which other machines cannot reach")
    address = _ip(parsed.host)
    if not parsed.host or (address is not None and address.is_unspecified):
        raise _NotAsked(f"its API listens at {url}, which is no address that it can be found at; give --api one")
    return _Place(httpx.URL(scheme=parsed.scheme, host=parsed.host, port=parsed.port), parsed.host)


def _ip(text: str) -> Ip | None:
    """An address, an IPv4-mapped one as the IPv4 address it means; None for what is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_of_this_machine(address: Ip) -> bool:
    """Whether something can listen here at this address."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True
