"""What proposed rules would have decided, next to those in service: on a log, or on requests that nodes drew at random.

The work is done by a process of its own, which is ended where it takes too long; the service goes on serving.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from sluicegate.bounds import SAMPLES_KEPT_US, SAMPLES_PER_S, WHATIF_AT_ONCE, WHATIF_S_MAX
from sluicegate.clock import US_PER_S, Clock
from sluicegate.control.errors import Conflict, Fault, Invalid
from sluicegate.control.ledger import Ledger
from sluicegate.control.model import Actor, Role
from sluicegate.control.nodes import Nodes
from sluicegate.control.rulesets import Rulesets
from sluicegate.control.samples import Recent, Samples, lines_of
from sluicegate.replaying.job import Job, JobResult

__all__ = ["Sampled", "WhatIf", "WhatIfAnswer"]

_US_PER_MINUTE: Final = 60 * US_PER_S
_NORMAL_95: Final = 1.96


class Sampled(msgspec.Struct, frozen=True):
    """How far counts of sampled traffic can be trusted.

    ``requests`` were decided, of which ``samples`` were drawn, so that each stands for ``weight``. Of the newly refused (allowed) requests the
    true number is between ``low`` and ``high`` with 95 % confidence, as far as chance decides who was drawn.
    """

    requests: int
    samples: int
    weight: int
    newly_refused_low: int
    newly_refused_high: int
    newly_allowed_low: int
    newly_allowed_high: int


class WhatIfAnswer(msgspec.Struct, frozen=True):
    """``version``: of the rules in service that the proposed ones were compared with, which are ``against`` in ``report``. ``sampled`` None: it was a log."""

    version: int
    report: dict[str, Any]
    sampled: Sampled | None = None


class WhatIf:
    """Tries proposed rules. ``samples`` are of nodes that report to this process. ``done``: trials by how they ended."""

    def __init__(self, ledger: Ledger, rulesets: Rulesets, nodes: Nodes, clock: Clock) -> None:
        self.samples = Samples(clock)
        self.done = {"done": 0, "failed": 0, "too_long": 0, "busy": 0}
        self._ledger = ledger
        self._rulesets = rulesets
        self._room = asyncio.Semaphore(WHATIF_AT_ONCE)
        nodes.observers.append(self.samples.observe)
        nodes.sample_per_s = max(nodes.sample_per_s, SAMPLES_PER_S)

    async def on_log(
        self, actor: Actor, document: Any, log: AsyncIterator[bytes], *, log_format: str = "auto", window_us: int
    ) -> WhatIfAnswer:
        """On an access log, plain or gzip. Needs the role viewer.

        Raises Invalid for rules or a log that cannot be used, Conflict where there are no rules to compare with, where too many trials are
        at work, and for a log that takes longer than ``WHATIF_S_MAX``.
        """
        self._ledger.allow(actor, Role.VIEWER)
        version, current = await self._current(document)
        async with self._turn(), _scratch() as (path, file):
            async for piece in log:
                # A disk that is slow must not keep all others waiting.
                await asyncio.to_thread(file.write, piece)
            await asyncio.to_thread(file.flush)
            job = Job(document, current, [str(path)], log_format, window_us)
            return WhatIfAnswer(version, await self._run(job, path))

    async def on_samples(self, actor: Actor, document: Any, minutes: int) -> WhatIfAnswer:
        """On the requests that nodes drew in the last minutes. Needs the role viewer. Raises as ``on_log``."""
        self._ledger.allow(actor, Role.VIEWER)
        if not 1 <= minutes <= SAMPLES_KEPT_US // _US_PER_MINUTE:
            raise Invalid([Fault(f"minutes: want 1 to {SAMPLES_KEPT_US // _US_PER_MINUTE}, got {minutes}", "/minutes")])
        version, current = await self._current(document)
        async with self._turn(), _scratch() as (path, file):
            recent = self.samples.recent(minutes * _US_PER_MINUTE)
            if not recent.samples:
                raise Conflict(f"no node has told of requests in the last {minutes} minutes; try a log")
            await asyncio.to_thread(_write, file, recent)
            report = await self._run(Job(document, current, [str(path)], "json"), path)
        against = report["against"]
        refused = _between(against["newly_refused"], recent.weight)
        allowed = _between(against["newly_allowed"], recent.weight)
        return WhatIfAnswer(
            version, report, Sampled(recent.requests, recent.samples, recent.weight, *refused, *allowed)
        )

    async def _current(self, document: Any) -> tuple[int, dict[str, Any]]:
        """The rules in service; raises Invalid where the proposed ones are none."""
        await self._rulesets.candidate(document)
        current = await self._rulesets.current()
        if current is None:
            raise Conflict("there are no rules in service to compare with")
        return current.info.version, dict(current.document)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._room.locked():
            self.done["busy"] += 1
            raise Conflict(f"{WHATIF_AT_ONCE} trials are at work, as many as may be; try again when one is done")
        async with self._room:
            yield

    async def _run(self, job: Job, path: Path) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sluicegate.replaying.job",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(WHATIF_S_MAX):
                out, _ = await process.communicate(msgspec.json.encode(job))
        except TimeoutError:
            self.done["too_long"] += 1
            raise Conflict(f"it takes longer than {WHATIF_S_MAX} s; replay the log where it lies") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            self.done["failed"] += 1
            raise Conflict("it takes more memory than it may, or the machine is short of it")
        result = msgspec.json.decode(out, type=JobResult)
        if result.report is None:
            self.done["failed"] += 1
            raise Invalid([Fault(result.error.replace(str(path), "the log"))])
        self.done["done"] += 1
        for bad in result.report["bad"]:
            bad["log"] = "the log"
        return result.report


@contextlib.asynccontextmanager
async def _scratch() -> AsyncIterator[tuple[Path, BinaryIO]]:
    """A file that is gone afterwards, and that nobody else can read."""
    with tempfile.TemporaryDirectory(prefix="sluicegate-whatif-") as directory:
        path = Path(directory) / "log"
        with path.open("wb") as file:
            yield path, file


def _write(file: BinaryIO, recent: Recent) -> None:
    file.writelines(lines_of(recent))
    file.flush()


def _between(found: int, weight: int) -> tuple[int, int]:
    """Where the true number lies with 95 % confidence, of which ``found`` was counted on samples that stand for ``weight`` each."""
    if weight == 1:
        return found, found
    drawn = found / weight
    # The interval of Wilson for a count that is small beside all: it does not end at 0 where nothing was drawn.
    square = _NORMAL_95**2
    middle, half = drawn + square / 2, _NORMAL_95 * math.sqrt(drawn + square / 4)
    return max(0, math.floor((middle - half) * weight)), math.ceil((middle + half) * weight)
