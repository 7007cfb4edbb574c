"""A replay in a process of its own: the job comes as JSON on standard input, the report goes as JSON to standard output.

For a service that must go on serving meanwhile, and end what takes too long. ``python -m sluicegate.replaying.job``
"""

from __future__ import annotations

import contextlib
import resource
import sys
from typing import Any

import msgspec

from sluicegate.bounds import WHATIF_CLIENTS_SHOWN, WHATIF_MEMORY_BYTES_MAX
from sluicegate.errors import ConfigurationError
from sluicegate.replaying.run import Replay, replay
from sluicegate.rules.document import load_document

__all__ = ["Job", "JobResult", "run_job"]


class Job(msgspec.Struct, frozen=True):
    """``rules`` and ``against`` are rules files as JSON; see ``Replay`` for the rest."""

    rules: dict[str, Any]
    against: dict[str, Any]
    logs: list[str]
    log_format: str = "auto"
    window_us: int = 120_000_000
    fields: list[str] = []


class JobResult(msgspec.Struct, frozen=True):
    """``report`` as ``Report.to_dict``; None where there is an ``error``."""

    report: dict[str, Any] | None = None
    error: str = ""


def run_job(job: Job) -> JobResult:
    """The report, or why there is none."""
    try:
        what = Replay(
            rules=load_document(job.rules, "the proposed rules", 2),
            against=load_document(job.against, "the rules in service", 1),
            logs=job.logs,
            log_format=job.log_format,
            window_us=job.window_us,
            fields=job.fields,
            clients_shown=WHATIF_CLIENTS_SHOWN,
        )
        return JobResult(replay(what, _ignore, _ignore).to_dict())
    except ConfigurationError as error:
        return JobResult(error=str(error))
    except MemoryError:
        return JobResult(error="it takes more memory than it may: the log has too many clients for these rules")


def _ignore(_size: int) -> None:
    """Nobody watches."""


def _main() -> None:
    with contextlib.suppress(ValueError, OSError):
        # Where the system sets a lower limit, that holds.
        resource.setrlimit(resource.RLIMIT_AS, (WHATIF_MEMORY_BYTES_MAX, WHATIF_MEMORY_BYTES_MAX))
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(run_job(job)))


if __name__ == "__main__":
    _main()
