"""The flags of regions that share their quotas."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from sluicegate.app.settings import Settings
from sluicegate.stores.regional.plan import EACH, Plan

Run = Callable[..., Any]

REDIS = ("--store", "redis://127.0.0.1:9/0")
EU = (*REDIS, "--region", "eu", "--regions", "eu=50,us=30")


def test_without_flags_there_are_no_regions(sluicegate: Run, served: list[Settings]) -> None:
    """A server is alone with its store."""
    assert sluicegate("serve", *REDIS).status == 0
    assert served[0].regions is None


def test_a_region_and_its_table_are_enough(sluicegate: Run, served: list[Settings]) -> None:
    """All else has its default, and blanks in the table do not count."""
    assert sluicegate("serve", *REDIS, "--region", "eu", "--regions", "eu=50, us=30").status == 0
    found = served[0].regions
    assert found is not None
    assert (found.region, found.plan, found.stores) == ("eu", Plan({"eu": 50, "us": 30}), {})


def test_each_flag_arrives(sluicegate: Run, served: list[Settings]) -> None:
    """Each in its own field; stores may be named one after the other."""
    flags = [*EU, "--regions-before", "eu=1,us=1,ap=2", "--regions-version", "7", "--borrow-max", "0.35"]
    flags += ["--region-store", "us=redis://127.0.0.1:8/0?timeout_ms=50", "--region-store", "ap=rediss://127.0.0.1:7"]
    assert sluicegate("gateway", "--upstream", "http://127.0.0.1:9", *flags, "--region-clients", "each").status == 0
    found = served[0].regions
    assert found is not None
    before = {"eu": 1, "us": 1, "ap": 2}
    assert found.plan == Plan({"eu": 50, "us": 30}, Fraction(7, 20), before, 7, EACH)
    assert found.stores == {"us": "redis://127.0.0.1:8/0?timeout_ms=50", "ap": "rediss://127.0.0.1:7"}


@pytest.mark.parametrize(
    ("text", "part"), [("0", 0), ("1", 1), (".5", Fraction(1, 2)), ("0.999999", Fraction(999_999, 10**6))]
)
def test_the_part_that_is_lent_is_exact(text: str, part: Fraction, sluicegate: Run, served: list[Settings]) -> None:
    """No binary fraction comes in between."""
    assert sluicegate("serve", *EU, "--borrow-max", text).status == 0
    assert served[0].regions is not None
    assert served[0].regions.plan.borrow_max == part


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--region", "eu"), "--region and --regions belong together"),
        (("--regions", "eu=1"), "--region and --regions belong together"),
        (("--region-store", "us=redis://127.0.0.1"), "are for servers with --region and --regions"),
        (("--regions-before", "eu=1"), "are for servers with --region and --regions"),
        (("--region", "ap", "--regions", "eu=1,us=1"), "--region: 'ap' is none of the regions, which are eu, us"),
        (("--region", "eu", "--regions", "eu=1,eu=2"), "--regions: 'eu' is given twice"),
        (("--region", "eu", "--regions", "eu"), "--regions: want NAME=WEIGHT with a whole number, got 'eu'"),
        (("--region", "eu", "--regions", "eu=-1"), "--regions: want NAME=WEIGHT with a whole number, got 'eu=-1'"),
        (("--region", "eu", "--regions", "eu=\u0663"), "--regions: want NAME=WEIGHT with a whole number"),
        (("--region", "eu", "--regions", "eu=0,us=0"), "the weights of all regions are 0"),
        (("--region", "eu", "--regions", "EU=1"), "--regions: 'EU' is no name of a region"),
        ((*EU[2:], "--regions-before", "eu=0"), "--regions-before: the weights of all regions are 0"),
        ((*EU[2:], "--region-store", "us=redis://127.0.0.1?timeout=1"), "--region-store: us: Redis has no parameter"),
        ((*EU[2:], "--borrow-max", "1.1"), "--borrow-max: want 0 to 1"),
        ((*EU[2:], "--borrow-max", "-0.1"), "--borrow-max: want a number from 0 to 1"),
        ((*EU[2:], "--borrow-max", "20%"), "--borrow-max: want a number from 0 to 1"),
        ((*EU[2:], "--regions-version", "0"), "--regions-version: want 1 to"),
        ((*EU[2:], "--region-store", "us"), "--region-store: want NAME=URL"),
        ((*EU[2:], "--region-store", "ap=redis://127.0.0.1"), "--region-store: 'ap' is none of the regions"),
        ((*EU[2:], "--region-store", "eu=redis://127.0.0.1"), "whose store is --store"),
        ((*EU[2:], "--region-store", "us=memory://"), "--region-store: us: want a Redis"),
        (
            (*EU[2:], "--region-store", "us=redis://127.0.0.1", "--region-store", "us=redis://127.0.0.2"),
            "--region-store: 'us' is given twice",
        ),
    ],
)
def test_what_is_wrong_is_named(flags: tuple[str, ...], message: str, sluicegate: Run, served: list[Settings]) -> None:
    """The server does not start, and says which flag and value it does not accept."""
    found = sluicegate("serve", *REDIS, *flags)
    assert found.status != 0
    assert message in " ".join(found.err.split())
    assert served == []


def test_the_report_splits_nothing_in_regions(sluicegate: Run, tmp_path: Path) -> None:
    """Rules that a hot counter of one region would split or draw by chance are decided by the store, and nothing is added to their bound."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "version: 1\nrules:\n  - {name: a, quota: 3000/second, precision: split}\n"
        "  - {name: b, quota: 3000/second, precision: estimated}\n"
    )
    alone = json.loads(sluicegate("rules", "bounds", "--json", str(rules)).out)
    assert [row["shared"]["precision"] for row in alone] == ["split", "estimated"]
    regions = ("--regions", "eu=1,us=1", "--json", str(rules))
    for row in json.loads(sluicegate("rules", "bounds", *regions).out):
        assert (row["shared"]["precision"], row["shared"]["over_admitted"]) == ("exact", 0)
        assert row["shared"]["decided"] == "decided by the store; in regions nothing is split or drawn by chance"


def test_a_region_without_a_table_means_nothing(sluicegate: Run, tmp_path: Path) -> None:
    """The report refuses what a server would refuse."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nrules:\n  - {name: a, quota: 3000/second}\n")
    found = sluicegate("rules", "bounds", "--region", "eu", str(rules))
    assert found.status == 2
    assert "--region and --regions belong together" in found.err


@pytest.mark.parametrize(
    ("stores", "message"),
    [
        (("us=redis://127.0.0.1:6379",), "--region-store: us: 127.0.0.1:6379 is the store of 'eu'"),
        (("us=rediss://u:hunter2@127.0.0.1/0",), "--region-store: us: 127.0.0.1:6379 is the store of 'eu'"),
        (("us=redis://b", "ap=valkey://b:6379?timeout_ms=9"), "--region-store: ap: b:6379 is the store of 'us'"),
    ],
)
def test_two_regions_do_not_share_a_store(
    stores: tuple[str, ...], message: str, sluicegate: Run, served: list[Settings]
) -> None:
    """One server and database given for two regions, however it is written, is refused."""
    flags = ["--store", "redis://127.0.0.1:6379", "--region", "eu", "--regions", "eu=1,us=1,ap=1"]
    found = sluicegate("serve", *flags, *(flag for store in stores for flag in ("--region-store", store)))
    assert found.status == 2
    assert message in " ".join(found.err.split())
    assert "hunter2" not in found.err
    assert served == []


def test_two_databases_of_a_server_are_two_stores(sluicegate: Run, served: list[Settings]) -> None:
    """What counts is where keys are."""
    flags = ["--store", "redis://127.0.0.1:6379/1", "--region", "eu", "--regions", "eu=1,us=1"]
    assert sluicegate("serve", *flags, "--region-store", "us=redis://127.0.0.1:6379/2").status == 0
    assert len(served) == 1


def test_a_store_url_is_not_shown(sluicegate: Run, served: list[Settings]) -> None:
    """It may have a password in it."""
    found = sluicegate("serve", *EU, "--region-store", "us=http://user:hunter2@127.0.0.1")
    assert found.status != 0
    assert "hunter2" not in found.out + found.err
    assert served == []


def test_a_region_needs_a_redis(sluicegate: Run, served: list[Settings]) -> None:
    """Others cannot reach the memory of a process."""
    found = sluicegate("serve", *EU[2:], "--store", "memory://")
    assert found.status != 0
    assert "the store of a region is a Redis" in " ".join(found.err.split())
