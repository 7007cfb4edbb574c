"""The warning about workers that count each by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Depends, FastAPI

from sluicegate.doors.fastapi import RateLimitMiddleware, limit
from sluicegate.doors.web import door
from sluicegate.doors.web.workers import WorkersWarning
from sluicegate.limiter.limiter import Limiter

Make = Callable[..., Limiter]


@pytest.mark.parametrize(("asked", "said"), [("4", 1), ("1", 0), ("", 0), ("many", 0), (None, 0)])
def test_several_workers_with_memories_of_their_own(
    by_quota: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, asked: str | None, said: int
) -> None:
    """P64: where the environment asks for several workers and counters are in memory, the log says it once for all doors."""
    monkeypatch.setattr(door, "_workers", WorkersWarning())
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)
    if asked is not None:
        monkeypatch.setenv("WEB_CONCURRENCY", asked)
    with caplog.at_level(logging.WARNING, "sluicegate.doors"):
        for _ in range(2):
            RateLimitMiddleware(None, by_quota("1/minute"))  # type: ignore[arg-type]
    assert len(caplog.records) == said
    assert all("WEB_CONCURRENCY is 4" in record.message for record in caplog.records)


def test_a_shared_store_needs_no_warning(by_quota: Make, caplog: pytest.LogCaptureFixture) -> None:
    """What is not a memory store counts for all workers together."""
    shared = by_quota("1/minute", store="redis://127.0.0.1:1/0").store
    WorkersWarning().look(shared, {"WEB_CONCURRENCY": "8"})
    assert not caplog.records


async def test_a_dependency_warns_where_it_counts_by_itself(
    ask: Any, by_quota: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P64: making a dependency says nothing, as the middleware may bring a shared store; using it without the middleware does."""
    monkeypatch.setattr(door, "_workers", WorkersWarning())
    monkeypatch.setenv("WEB_CONCURRENCY", "2")
    app = FastAPI()
    app.get("/", dependencies=[Depends(limit("9/minute"))])(lambda: "ok")
    assert not caplog.records
    assert (await ask(app)).status_code == 200
    assert [record.name for record in caplog.records if record.name.startswith("sluicegate")] == ["sluicegate.doors"]
