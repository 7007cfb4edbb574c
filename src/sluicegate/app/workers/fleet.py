"""The workers of one server as one of them sees them: who they are, how often they were restarted, and all their metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluicegate.app import logs
from sluicegate.app.workers.directory import rules_in_service, worker_socket
from sluicegate.app.workers.merge import merge
from sluicegate.app.workers.messages import Restarts
from sluicegate.bounds import FLEET_SCRAPE_BYTES_MAX, FLEET_SCRAPE_S

__all__ = ["Fleet", "fleet_exposition"]

_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n\r\n"


class Fleet:
    """Worker ``worker`` of ``workers``. ``restarts`` is what the supervisor said last."""

    def __init__(self, worker: int, workers: int, directory: Path, restarts: Restarts) -> None:
        self.worker = worker
        self.workers = workers
        self.restarts = restarts
        self._directory = directory
        self._askers: list[Callable[[str, bytes], None]] = []
        self._asking: asyncio.Future[None] | None = None

    @property
    def socket(self) -> Path:
        """Where this worker answers health and metrics to its own machine."""
        return worker_socket(self._directory, self.worker)

    @property
    def rules(self) -> Path:
        """Where the workers keep the rules in service for each other."""
        return rules_in_service(self._directory)

    def scrape(self, own: Callable[[], tuple[str, bytes]], answer: Callable[[str, bytes], None]) -> None:
        """Give ``answer`` the metrics of all workers, each sample with its ``worker``, in at most ``FLEET_SCRAPE_S``.

        ``own`` gives content type and text of this one. A worker that gives none in time is left out, and ``sluicegate_worker_up``
        says so. Whoever asks while others are being asked gets the same answer.
        """
        self._askers.append(answer)
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask(own))

    async def _ask(self, own: Callable[[], tuple[str, bytes]]) -> None:
        content_type, text = own()
        try:
            text = await self._exposition(text)
        except Exception:  # noqa: BLE001 - a fault of ours must not leave whoever asks without an answer
            logs.LOGGER.exception("scrape_failed")
        askers, self._askers, self._asking = self._askers, [], None
        for answer in askers:
            answer(content_type, text)

    async def _exposition(self, own: bytes) -> bytes:
        others = [number for number in range(1, self.workers + 1) if number != self.worker]
        answers = await asyncio.gather(*(_fetch(worker_socket(self._directory, number)) for number in others))
        texts = dict(zip(others, answers, strict=True)) | {self.worker: own}
        found = {number: text for number, text in sorted(texts.items()) if text is not None}
        # Beside the loop: of many workers and rules these are megabytes.
        merged = await asyncio.to_thread(merge, found)
        return fleet_exposition(self.workers, frozenset(found), self.restarts) + merged


def fleet_exposition(workers: int, up: frozenset[int], restarts: Restarts) -> bytes:
    """What is known of ``workers`` workers themselves, of which those of ``up`` have answered."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FleetMetrics(workers, up, restarts))
    return generate_latest(registry)


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


async def _fetch(socket: Path) -> bytes | None:
    """The exposition that is served on a Unix socket; None where it is not had in time."""
    try:
        async with asyncio.timeout(FLEET_SCRAPE_S):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            try:
                writer.write(_REQUEST)
                return await _body(reader)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, EOFError, ValueError, asyncio.LimitOverrunError):
        return None


async def _body(reader: asyncio.StreamReader) -> bytes | None:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    lengths = [int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")]
    if lines[0].split(b" ")[1:2] != [b"200"] or not lengths or lengths[0] > FLEET_SCRAPE_BYTES_MAX:
        return None
    return await reader.readexactly(lengths[0])
