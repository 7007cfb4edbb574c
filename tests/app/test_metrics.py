"""What ``/metrics`` says, and that docs/metrics.md says the same."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from certificates import Authority
from prometheus_client.parser import text_string_to_metric_families

from sluicegate.app.analytics.settings import AnalyticsSettings
from sluicegate.app.build import Application, build
from sluicegate.app.feed.settings import FeedSettings
from sluicegate.app.regions import RegionSettings
from sluicegate.app.settings import Settings
from sluicegate.app.tls import TlsFiles
from sluicegate.app.workers.fleet import fleet_exposition
from sluicegate.app.workers.messages import Restarts
from sluicegate.clock import ManualClock, SystemClock
from sluicegate.control.http.app import build_app
from sluicegate.control.http.metrics import exposition
from sluicegate.control.http.settings import ApiSettings
from sluicegate.control.service import RulesService
from sluicegate.doors.listen import Address
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import ListEntry, SubjectEntry
from sluicegate.stores.regional.plan import Plan

LOOPBACK = Address("127.0.0.1", 0)
LOGIN = Facts(method="POST", path="/login", ip="203.0.113.9")


@pytest.fixture
async def application(rules: Path) -> Application:
    """Everything composed, nothing listening."""
    settings = Settings(
        rules=rules, gateway=LOOPBACK, api=LOOPBACK, health=LOOPBACK, grpc=LOOPBACK, upstreams=("http://127.0.0.1:9",)
    )
    application = build(settings, rules, ManualClock())
    application.start_gateway(settings.upstreams)
    return application


@pytest.fixture
async def shared(rules: Path, authority: Authority) -> AsyncIterator[Application]:
    """The same with TLS, and with a store and a rules service over a network, which are absent."""
    settings = Settings(
        rules=rules,
        api=LOOPBACK,
        store="redis://user:secret@127.0.0.1:9/3?key_secret=0123456789abcdef",
        nodes=3,
        feed=FeedSettings(url="http://127.0.0.1:9", token="a-token-of-the-nodes"),
        tls={"api": TlsFiles(*authority.issue("api"))},
        analytics=AnalyticsSettings(mode="embedded"),
        data=rules.parent / "data",
    )
    application = build(settings, rules, SystemClock())
    yield application
    await application.close()


@pytest.fixture
async def regional(rules: Path) -> AsyncIterator[Application]:
    """One in a region, whose stores are absent."""
    store = "redis://127.0.0.1:9"
    regions = RegionSettings("eu", Plan({"eu": 1, "us": 1}), {"us": f"{store}/1"})
    settings = Settings(rules=rules, api=LOOPBACK, store=store, regions=regions)
    application = build(settings, rules, SystemClock())
    yield application
    await application.close()


def samples(application: Application) -> Iterator[tuple[str, dict[str, str], float]]:
    """Every value of a scrape: name, labels, value."""
    content_type, text = application.metrics.exposition()
    assert content_type.startswith("text/plain; version=0.0.4")
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def value(application: Application, name: str, **labels: str) -> float:
    """One value."""
    found = [number for other, given, number in samples(application) if other == name and given == labels]
    assert len(found) == 1, (name, labels)
    return found[0]


@pytest.fixture
async def of_service(tmp_path: Path) -> AsyncIterator[bytes]:
    """A scrape of a rules service."""
    clock = ManualClock()
    service = await RulesService.open(f"sqlite:///{tmp_path}/control.db", clock)
    yield exposition(build_app(service, ApiSettings(), clock).state.context)
    await service.close()


async def test_documented_and_exported_are_the_same(
    application: Application, shared: Application, regional: Application, of_service: bytes
) -> None:
    """Each metric of the program is in docs/metrics.md with its labels, and the page names no other."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
    rows = {
        name: set(re.findall(r"`(\w+)`", row[2]))
        for row in (line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `sluicegate_"))
        if len(row) == 4
        for name in re.findall(r"`(\w+)`", row[0])
    }
    workers = fleet_exposition(2, frozenset([1]), Restarts())
    assert shared.feed is not None
    shared.feed.node.standing.reached()
    assert shared.flusher is not None
    shared.flusher.sink.stats.last_us = 1
    families: set[str] = set()
    scraped = [one.metrics.exposition()[1] for one in (application, shared, regional)]
    for text in (*scraped, workers, of_service):
        found = re.findall(r"^# TYPE (sluicegate_\w+)", text.decode(), re.MULTILINE)
        assert len(set(found)) == len(found), "no name stands for two metrics"
        families |= set(found)
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                if sample.name.startswith("sluicegate_"):
                    name = family.name if family.type == "histogram" else sample.name
                    assert set(sample.labels) - {"le"} == rows[name], sample.name
    assert families == set(rows)
    assert set(re.findall(r"sluicegate_\w+", page)) == set(rows)


async def test_a_region_hides_no_metric_of_its_store(shared: Application, regional: Application) -> None:
    """What there is of a store over a network there is of a region's own store as well."""
    of_store = {name for name, _, _ in samples(shared) if name.startswith(("sluicegate_store_", "sluicegate_lease"))}
    assert "sluicegate_store_news_failing" in of_store
    assert of_store <= {name for name, _, _ in samples(regional)}


async def test_decisions_are_counted(application: Application) -> None:
    """Passes, refusals by rule, and requests of no rule are counted once each; peeks apart."""
    for _ in range(7):
        application.limiter.check(LOGIN)
    application.limiter.check(Facts(path="/"))
    application.limiter.check(LOGIN, peek=True)
    assert value(application, "sluicegate_allowed_total") == 6
    assert value(application, "sluicegate_unmatched_total") == 1
    assert value(application, "sluicegate_refused_total", rule="login", outcome="denied") == 2
    assert value(application, "sluicegate_peeks_total") == 1
    assert value(application, "sluicegate_store_counters") == 1


async def test_rules_are_described(application: Application, rules: Path) -> None:
    """Version, digest and state of the file are those of the rules in service."""
    state = application.rules.state
    assert value(application, "sluicegate_rules_info", digest=state.digest) == 1
    rules.write_text("nonsense")
    for _ in range(2):
        application.rules.poll(application.apply)
    assert value(application, "sluicegate_rules_file_ok") == 0
    assert value(application, "sluicegate_rules_version") == 1
    assert value(application, "sluicegate_rules_rejected_total") == 1


async def test_labels_do_not_grow_with_traffic(application: Application) -> None:
    """A thousand clients and paths add no line to the exposition."""
    application.limiter.check(LOGIN)
    before = application.metrics.exposition()[1].count(b"\n")
    for number in range(1_000):
        application.limiter.check(Facts(method="POST", path="/login", ip=f"10.0.{number // 250}.{number % 250}"))
        application.limiter.check(Facts(method="GET", path=f"/{number}", user=str(number)))
    assert application.metrics.exposition()[1].count(b"\n") == before


async def test_an_absent_store_is_shown_without_its_secrets(shared: Application) -> None:
    """T80: decisions go on by policy and are counted as such; neither metrics nor readiness show user, password or secret."""
    await shared.store_watch.warm()
    assert (await shared.limiter.acheck(LOGIN)).degraded
    assert value(shared, "sluicegate_degraded_rules_total", policy="local") == 1
    assert value(shared, "sluicegate_store_failing") == 1
    assert value(shared, "sluicegate_store_up", server="127.0.0.1:9") == 0
    assert value(shared, "sluicegate_fallback_nodes") == 3
    shared.status.started = True
    ready, detail = shared.status.ready()
    assert ready
    assert detail["store"] == "redis://127.0.0.1:9/3"
    assert detail["degraded_since"] is not None
    assert [server["address"] for server in detail["servers"]] == ["127.0.0.1:9"]
    shown = json.dumps(detail) + shared.metrics.exposition()[1].decode()
    assert [
        secret for secret in ("user:", "secret@", ":secret", "key_secret", "0123456789abcdef") if secret in shown
    ] == []


async def test_lists_subjects_and_penalties_are_counted(application: Application) -> None:
    """Entries by list and kind, subjects and overrides, and what lists decided; no name of a client is in the exposition."""
    limiter = application.limiter
    limiter.lists.put(ListEntry("block", "ip", "203.0.113.0/24"))
    limiter.lists.put(ListEntry("allow", "user", "zaphod"))
    limiter.subjects.put(SubjectEntry("user:trillian", "paid"))
    limiter.subjects.put(SubjectEntry("user:marvin", None, 1, 2))
    limiter.check(LOGIN)
    limiter.check(Facts(user="zaphod"))
    assert value(application, "sluicegate_list_entries", list="block", kind="ip") == 1
    assert value(application, "sluicegate_list_entries", list="allow", kind="user") == 1
    assert value(application, "sluicegate_list_entries", list="allow", kind="tenant") == 0
    assert value(application, "sluicegate_subjects") == 2
    assert value(application, "sluicegate_subject_overrides") == 1
    assert value(application, "sluicegate_block_listed_total") == 1
    assert value(application, "sluicegate_allow_listed_total") == value(application, "sluicegate_allowed_total") == 1
    assert value(application, "sluicegate_refused_total", rule="block:ip", outcome="never_fits") == 1
    assert value(application, "sluicegate_penalties_total") == 0
    text = application.metrics.exposition()[1]
    assert not [name for name in (b"zaphod", b"trillian", b"marvin", b"203.0.113") if name in text]


async def test_durations_are_histograms_of_a_sample(application: Application) -> None:
    """One check in sixteen is measured, the first included; buckets are cumulative, below a millisecond too, and the last has all."""
    door = application.metrics.doors["api"]
    handler = door.routes["/v1/check"].handlers["POST"]
    for _ in range(17):
        assert handler(b'{"facts": {"ip": "203.0.113.9"}}')[0] == 200
    found = [
        (float(labels["le"]), number)
        for name, labels, number in samples(application)
        if name == "sluicegate_decision_duration_seconds_bucket" and labels["listener"] == "api"
    ]
    assert found[-1] == (float("inf"), 2)
    assert [end for end, _ in found][:5] == [0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5]
    assert [number for _, number in found] == sorted(number for _, number in found)
    assert value(application, "sluicegate_decision_duration_seconds_count", listener="api") == 2


async def test_the_clock_is_told(application: Application) -> None:
    """The wall clock is that of the process, in seconds."""
    assert value(application, "sluicegate_clock_timestamp_seconds") == application.clock.now_us() / 1_000_000
