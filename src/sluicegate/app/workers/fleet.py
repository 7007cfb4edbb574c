"""The workers of one server as one of them sees them: who they are, how often they were restarted, and all their metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluicegate.app import logs
from sluicegate.app.open_metrics import open_metrics
from sluicegate.app.workers.directory import rules_in_service, worker_socket
from sluicegate.app.workers.merge import END, merge
from sluicegate.app.workers.messages import Restarts
from sluicegate.bounds import FLEET_ANSWER_BYTES_MAX, FLEET_ANSWER_S
from sluicegate.doors.http.respond import Reply

__all__ = ["Fleet", "fleet_exposition"]

_OK, _UNKNOWN = 200, 404


class Fleet:
    """Worker ``worker`` of ``workers``. ``restarts`` is what the supervisor said last. See ``doors.http.peers`` for what it answers."""

    def __init__(self, worker: int, workers: int, directory: Path, restarts: Restarts) -> None:
        self.worker = worker
        self.workers = workers
        self.restarts = restarts
        self._directory = directory
        self._askers: dict[str, list[Callable[[str, bytes], None]]] = {}
        """By the format that they want, as ``Accept`` says it."""
        self._asking: dict[str, asyncio.Future[None]] = {}

    @property
    def socket(self) -> Path:
        """Where this worker answers health and metrics to its own machine."""
        return worker_socket(self._directory, self.worker)

    @property
    def rules(self) -> Path:
        """Where the workers keep the rules in service for each other."""
        return rules_in_service(self._directory)

    def scrape(
        self, own: Callable[[], tuple[str, bytes]], answer: Callable[[str, bytes], None], *, accept: str = ""
    ) -> None:
        """Give ``answer`` the metrics of all workers, each sample with its ``worker``, in at most ``FLEET_ANSWER_S``.

        ``own`` gives content type and text of this one. A worker that gives none in time is left out, and ``sluicegate_worker_up``
        says so. Whoever asks for the same format while others are being asked gets the same answer.
        """
        self._askers.setdefault(accept, []).append(answer)
        if accept not in self._asking:
            self._asking[accept] = asyncio.ensure_future(self._answer(own, accept))

    async def refund(self, body: bytes) -> Reply | None:
        """Ask all others to give back what the decision named in ``body`` has charged; the answer of the one that knows it.

        One that does not answer in ``FLEET_ANSWER_S`` counts as one that does not know it: receipts end with their process.
        """
        answers = (await self._ask_others(_request("POST", "/v1/refund", body))).values()
        return next((answer for answer in answers if answer is not None and answer[0] != _UNKNOWN), None)

    async def _ask_others(self, request: bytes) -> dict[int, Reply | None]:
        others = [number for number in range(1, self.workers + 1) if number != self.worker]
        answers = await asyncio.gather(*(_ask(worker_socket(self._directory, number), request) for number in others))
        return dict(zip(others, answers, strict=True))

    async def _answer(self, own: Callable[[], tuple[str, bytes]], accept: str) -> None:
        content_type, text = own()
        try:
            text = await self._exposition(text, accept)
        except Exception:  # noqa: BLE001 - a fault of ours must not leave whoever asks without an answer
            logs.LOGGER.exception("scrape_failed")
        del self._asking[accept]
        for answer in self._askers.pop(accept):
            answer(content_type, text)

    async def _exposition(self, own: bytes, accept: str) -> bytes:
        answers = await self._ask_others(_request("GET", "/metrics", accept=accept))
        texts = {number: answer[2] for number, answer in answers.items() if answer is not None and answer[0] == _OK}
        found = dict(sorted((texts | {self.worker: own}).items()))
        # Beside the loop: of many workers and rules these are megabytes.
        merged = await asyncio.to_thread(merge, found)
        end = f"{END}\n".encode() if accept else b""
        return fleet_exposition(self.workers, frozenset(found), self.restarts, accept=accept) + merged + end


def fleet_exposition(workers: int, up: frozenset[int], restarts: Restarts, *, accept: str = "") -> bytes:
    """What is known of ``workers`` workers themselves, of which those of ``up`` have answered; without the end of OpenMetrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FleetMetrics(workers, up, restarts))
    return open_metrics(registry).removesuffix(f"{END}\n".encode()) if accept else generate_latest(registry)


class _FleetMetrics(Collector):
    def __init__(self, workers: int, up: frozenset[int], restarts: Restarts) -> None:
        self._workers = workers
        self._up = up
        self._restarts = restarts

    def collect(self) -> list[Metric]:
        """The families, in order."""
        up = GaugeMetricFamily(
            "sluicegate_worker_up", "1 where the worker's metrics are part of this answer", labels=["worker"]
        )
        restarts = CounterMetricFamily(
            "sluicegate_worker_restarts", "Times the worker was started again after it had ended", labels=["worker"]
        )
        for number in range(1, self._workers + 1):
            up.add_metric([str(number)], int(number in self._up))
            restarts.add_metric([str(number)], self._restarts.workers.get(number, 0))
        store = CounterMetricFamily(
            "sluicegate_embedded_store_restarts",
            "Times the embedded store was started again after it had ended",
            value=self._restarts.store,
        )
        return [up, restarts, store]


async def _ask(socket: Path, request: bytes) -> Reply | None:
    """What a worker answers on its own socket; None where that is not had in time."""
    try:
        async with asyncio.timeout(FLEET_ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            try:
                writer.write(request)
                return await _read(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError, EOFError, LookupError, ValueError, asyncio.LimitOverrunError):
        return None


async def _read(reader: asyncio.StreamReader) -> Reply:
    start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(fields["content-length"])
    if length > FLEET_ANSWER_BYTES_MAX:
        raise ValueError(f"an answer of {length} bytes, at most {FLEET_ANSWER_BYTES_MAX} are read")
    kept = "".join(f"{name.title()}: {fields[name]}\r\n" for name in ("content-type", "retry-after") if name in fields)
    return int(start.split(" ")[1]), kept, await reader.readexactly(length)


def _request(method: str, path: str, body: bytes = b"", *, accept: str = "") -> bytes:
    asked = f"Accept: {accept}\r\n" if accept else ""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: worker\r\n{asked}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body
