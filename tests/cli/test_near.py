"""The flags of leases and the deny cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.app.settings import Settings
from sluicegate.cli import near
from sluicegate.stores.near.settings import NearSettings

Run = Callable[..., Any]


def test_without_flags_all_is_on(sluicegate: Run, served: list[Settings]) -> None:
    """What can be answered in the process is, by the numbers that programs have too."""
    assert sluicegate("serve").status == 0
    assert served[0].near == NearSettings()


def test_each_number_has_a_flag(sluicegate: Run, served: list[Settings]) -> None:
    """Times are durations, numbers are numbers, and each arrives in its own field."""
    flags = ["--lease-ttl", "2s", "--lease-drift-ppm", "500", "--lease-horizon", "100ms", "--lease-exact-below", "20"]
    flags += [
        "--leases-max",
        "7",
        "--leases-confirmed",
        "--deny-cache-max",
        "8",
        "--deny-cache-trust",
        "250ms",
        "--deny-cache-stretch",
        "3s",
    ]
    flags += ["--hot-per-s", "90", "--cold-per-s", "9", "--cold-after", "1m"]
    assert sluicegate("serve", *flags).status == 0
    assert served[0].near == NearSettings(
        terms=LeaseTerms(ttl_us=2_000_000, drift_ppm=500, confirmed=True),
        horizon_us=100_000,
        exact_below=20,
        leases_max=7,
        denials_max=8,
        trust_us=250_000,
        stretch_max_us=3_000_000,
        hot_per_s=90,
        cold_per_s=9,
        cold_us=60_000_000,
    )


def test_every_setting_has_a_flag() -> None:
    """What a program can set an operator can set: no field is without a flag."""
    flagged = {field for _, field, _ in (*near._TERMS, *near._NUMBERS)}
    assert {field.name for kind in (LeaseTerms, NearSettings) for field in fields(kind)} - {
        "terms",
        "confirmed",
    } == flagged


@pytest.mark.parametrize(
    "flags, leases_max, denials_max", [(["--no-leases"], 0, 100_000), (["--no-deny-cache"], 10_000, 0)]
)
def test_either_can_be_switched_off(
    flags: list[str], leases_max: int, denials_max: int, sluicegate: Run, served: list[Settings]
) -> None:
    """One goes on without the other."""
    assert sluicegate("gateway", "--upstream", "http://127.0.0.1:9", *flags).status == 0
    found = served[0].near
    assert found is not None
    assert (found.leases_max, found.denials_max) == (leases_max, denials_max)


def test_without_both_every_check_asks_the_store(
    sluicegate: Run, served: list[Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both switched off, by flags, environment or file, leave nothing in front of the store."""
    assert sluicegate("serve", "--no-leases", "--no-deny-cache").status == 0
    file = tmp_path / "settings.yaml"
    file.write_text("leases: false\n", encoding="utf-8")
    monkeypatch.setenv("SLUICEGATE_DENY_CACHE", "0")
    assert sluicegate("up", "--config", str(file)).status == 0
    assert [settings.near for settings in served] == [None, None]


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--lease-ttl", "1ms"], "--lease-ttl: must be within 20ms..5s, got 1ms"),
        (["--lease-drift-ppm", "-1"], "--lease-drift-ppm: must be within 100..100000, got -1"),
        (["--lease-horizon", "0"], "--lease-horizon: must be within 8ms..2.5s, got 0s"),
        (["--lease-horizon", "600ms"], "--lease-horizon: must be at most half of --lease-ttl 1s, got 600ms"),
        (["--lease-ttl", "100ms"], "--lease-horizon: must be at most half of --lease-ttl 100ms, got 200ms"),
        (["--hot-per-s", "5"], "--cold-per-s: must be below --hot-per-s 5, got 10"),
        (["--deny-cache-max", "-1"], "--deny-cache-max: must be within 0..10000000, got -1"),
    ],
)
def test_a_number_out_of_range_is_told_by_its_flag(flags: list[str], said: str, sluicegate: Run) -> None:
    """The message names flag, field and value, and nothing is started."""
    refused = sluicegate("serve", *flags)
    assert refused.status == 2
    assert said in refused.err
