"""What one worker learns from the others, and what it does without those that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from sluicegate.app.workers import fleet as fleet_module
from sluicegate.app.workers.directory import worker_socket
from sluicegate.app.workers.fleet import Fleet
from sluicegate.app.workers.messages import Restarts

OWN = b"# HELP a A\n# TYPE a gauge\na 1\n"
OTHER = b"# HELP a A\n# TYPE a gauge\na 2\n"
Serve = Callable[[int, bytes | None], Awaitable[list[bytes]]]


def answer(body: bytes, status: str = "200 OK", kind: str = "text/plain") -> bytes:
    """An HTTP answer."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Stand for a worker that gives one answer (None: none at all) to everything; gives the list of what it was asked."""
    servers = []

    async def serve(worker: int, reply: bytes | None) -> list[bytes]:
        asked: list[bytes] = []

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            asked.append(head + await reader.readexactly(length))
            if reply is not None:
                writer.write(reply)
                await writer.drain()
            else:
                await reader.read()
            writer.close()

        servers.append(await asyncio.start_unix_server(connected, worker_socket(tmp_path, worker)))
        return asked

    yield serve
    for server in servers:
        server.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Worker 2 of 4; worker 3 was started again twice, the store once."""
    return Fleet(2, 4, tmp_path, Restarts({3: 2}, 1))


async def scraped(fleet: Fleet) -> list[str]:
    """The lines of the exposition of all."""
    done: asyncio.Future[tuple[str, bytes]] = asyncio.get_running_loop().create_future()
    fleet.scrape(lambda: ("text/plain; own", OWN), lambda kind, text: done.set_result((kind, text)))
    content_type, text = await done
    assert content_type == "text/plain; own"
    return text.decode().splitlines()


async def test_those_that_answer_are_merged(fleet: Fleet, serve: Serve) -> None:
    """The exposition holds those that answered; those that did not are named, with everybody's restarts."""
    await serve(1, answer(OTHER))
    await serve(4, answer(b"fault", "500 Internal Server Error"))
    lines = await scraped(fleet)
    assert [line for line in lines if line.startswith("a{")] == ['a{worker="1"} 2', 'a{worker="2"} 1']
    up = [line.rpartition("} ")[2] for line in lines if line.startswith("sluicegate_worker_up{")]
    assert up == ["1.0", "1.0", "0.0", "0.0"]
    assert 'sluicegate_worker_restarts_total{worker="3"} 2.0' in lines
    assert "sluicegate_embedded_store_restarts_total 1.0" in lines


async def test_one_that_hangs_delays_little(fleet: Fleet, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that takes the question and does not answer is left out when its time is over."""
    monkeypatch.setattr(fleet_module, "FLEET_ANSWER_S", 0.05)
    await serve(1, None)
    await serve(3, answer(OTHER))
    async with asyncio.timeout(60):
        lines = await scraped(fleet)
    assert [line for line in lines if line.startswith("a{")] == ['a{worker="2"} 1', 'a{worker="3"} 2']


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        answer(OTHER)[:-3],
        answer(OTHER).replace(b"Length: 30", b"Length: 99999999999"),
    ],
)
async def test_what_is_no_answer_is_left_out(fleet: Fleet, serve: Serve, reply: bytes) -> None:
    """An answer that is cut off, too large or none is not part of the exposition."""
    await serve(1, reply)
    assert [line for line in await scraped(fleet) if line.startswith("a{")] == ['a{worker="2"} 1']


async def test_scrapes_at_once_ask_once(fleet: Fleet, serve: Serve) -> None:
    """Whoever asks while others are being asked gets the same answer, so that many scrapes cost what one does."""
    asked = await serve(1, answer(OTHER))
    first, second = await asyncio.gather(scraped(fleet), scraped(fleet))
    assert (first, len(asked)) == (second, 1)
    await scraped(fleet)
    assert len(asked) == 2


async def test_refund_is_asked_of_all(fleet: Fleet, serve: Serve) -> None:
    """The answer of the one that knows the decision is given; the others were asked the same."""
    unknown = answer(b"{}", "404 Not Found", "application/problem+json")
    asked = [await serve(1, unknown), await serve(4, answer(b'{"refunded":1}', kind="application/json"))]
    body = b'{"decision_id":"x"}'
    assert await fleet.refund(body) == (200, "Content-Type: application/json\r\n", b'{"refunded":1}')
    assert [request.partition(b" HTTP")[0] for (request,) in asked] == [b"POST /v1/refund"] * 2
    assert all(request.endswith(b"\r\n\r\n" + body) for (request,) in asked)


async def test_refund_that_nobody_knows(fleet: Fleet, serve: Serve) -> None:
    """Where no worker that answers knows the decision, nobody does."""
    await serve(1, answer(b"{}", "404 Not Found"))
    assert await fleet.refund(b"{}") is None
