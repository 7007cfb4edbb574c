"""A fleet with all its real parts: what its home has is what its nodes decided, whatever dies on the way, and no client is in it by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import grpc
import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition
from real_clickhouse import ClickHouse
from real_kafka import Broker
from real_servers import Server as Redis

from sluicegate.analytics.clickhouse import ClickHouseHome, ClickHouseSettings, migrate
from sluicegate.analytics.model import Span
from sluicegate.errors import AnalyticsError

pytestmark = pytest.mark.slow

WAIT_S = 60.0
EVER = Span(0, 4_000_000_000_000_000)
RULES = """\
version: 1
rules:
  - {name: login, match: {path: /login}, per: [ip], quota: 40/hour}
  - {name: users, match: {path: /login}, per: [user], quota: 55/hour}
"""
PLANTED = ("planted-user", "203.0.113.", "2001:db8:dead")
CLIENTS = ("203.0.113.7", "203.0.113.8", "2001:db8:dead::7")
# One message of Envoy's rate limit service: domain "d", one descriptor with one entry, "k". No rule applies, so it is let through.
ASK = b"\x0a\x01d\x12\x05\x0a\x03\x0a\x01k"
CLIENT_PROPERTIES = "session.timeout.ms=6000\nreconnect.backoff.max.ms=200\n"


def until(met: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + WAIT_S
    while not met():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.05)


class Program:
    """A command that runs beside the test; its listeners are named by the lines that it prints."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        folder.mkdir()
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sluicegate", *arguments], stdout=out, stderr=err, cwd=folder, env=environment
            )
        self.client = httpx.Client(timeout=60)

    def url(self, name: str) -> str:
        """The URL of a listener, as soon as it is printed."""

        def lines() -> list[str]:
            return [line.split()[1] for line in self.out.read_text().splitlines() if line.startswith(f"{name} ")]

        until(lambda: bool(lines()) or self.process.poll() is not None, f"listener {name}")
        assert lines(), self.err.read_text()
        return lines()[0]

    def metric(self, door: str, *names: str) -> int:
        """The sum of metrics, over their labels."""
        lines = self.client.get(f"{self.url(door)}/metrics").text.splitlines()
        return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(names)))

    def stop(self) -> None:
        """SIGTERM; it has to end well."""
        self.process.terminate()
        assert self.process.wait(WAIT_S) == 0, self.err.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)

    def end(self) -> None:
        self.client.close()
        self.kill()


class Fleet:
    """Nodes on one Redis, and what they answered: ``answered`` by node's name."""

    def __init__(self, folder: Path, broker: Broker, redis: Redis, clickhouse: ClickHouse, database: str) -> None:
        self.folder = folder
        self.broker = broker
        self.topic = broker.new_topic(3)
        broker.new_topic(1, name=f"{self.topic}.dead")
        self.settings = ClickHouseSettings.from_url(clickhouse.url(database))
        migrate(self.settings)
        self.home = ClickHouseHome(self.settings)
        self.answered: Counter[tuple[str, str]] = Counter()
        self.programs: list[Program] = []
        (folder / "rules.yaml").write_text(RULES)
        (folder / "client.properties").write_text(CLIENT_PROPERTIES)
        self._kafka = ("--kafka", broker.address, "--kafka-topic", self.topic)
        self._shared = ("--rules", str(folder / "rules.yaml"), "--store", redis.url, "--log-format", "json")

    def _start(self, *arguments: str) -> Program:
        self.programs.append(Program(self.folder / f"program{len(self.programs)}", *arguments))
        return self.programs[-1]

    def node(self, command: str, name: str, *arguments: str) -> Program:
        return self._start(command, "--node-name", name, *self._shared, *self._kafka, *arguments)

    def consumer(self, clickhouse: ClickHouse) -> Program:
        config = ("--kafka-config", str(self.folder / "client.properties"), "--kafka-group", f"group-{self.topic}")
        url = clickhouse.url(self.settings.database)
        return self._start(
            "analytics", "consume", *self._kafka, *config, "--clickhouse", url, "--linger", "100ms",
            "--health", "127.0.0.1:0", "--log-format", "json",
        )  # fmt: skip

    def count(self, name: str, allowed: bool, *, matched: bool = True) -> None:
        self.answered[name, ("allowed" if matched else "unmatched") if allowed else "denied"] += 1

    def check(self, node: Program, name: str, times: int) -> None:
        """Single checks and a batch of them over HTTP."""
        url, client = node.url("api"), node.client
        asks = [
            {"facts": {"path": "/login", "ip": CLIENTS[turn % 3], "user": f"planted-user{turn % 5}"}}
            for turn in range(times)
        ]
        for ask in asks:
            status = client.post(f"{url}/v1/check?timeout_ms=5000", json=ask).status_code
            assert status in (200, 429)
            self.count(name, status == 200)
        for each in client.post(f"{url}/v1/check/batch?timeout_ms=5000", json=asks).json():
            self.count(name, each["allowed"])

    def call(self, node: Program, name: str, times: int) -> None:
        """Envoy's question over gRPC."""
        with grpc.insecure_channel(node.url("grpc").removeprefix("http://")) as channel:
            ask = channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
            for _ in range(times):
                self.count(name, ask(ASK, timeout=60)[:2] == b"\x08\x01", matched=False)

    def visit(self, node: Program, name: str, times: int) -> None:
        """Requests through the gateway; what the backend says of them does not matter."""
        for _ in range(times):
            status = node.client.get(f"{node.url('gateway')}/login").status_code
            self.count(name, status != 429)

    def made(self, name: str = "") -> int:
        return sum(count for (node, _), count in self.answered.items() if name in ("", node))

    def kept(self) -> Counter[tuple[str, str]]:
        """What the home has by node and outcome; nothing while it is away."""
        try:
            rows = self.home.requests(EVER, by=("node", "outcome"))
        except AnalyticsError:
            return Counter()
        return Counter({(row.node or "", row.outcome or ""): row.decisions for row in rows})

    def messages(self) -> list[bytes]:
        """All values and keys in the topic."""
        ends = self.broker.offsets(self.topic)
        client = Consumer({"bootstrap.servers": self.broker.address, "group.id": "looks", "log_level": 0})
        client.assign([TopicPartition(self.topic, number, 0) for number in range(len(ends))])
        found: list[bytes] = []
        until(lambda: len(found) >= 2 * sum(ends) or not self._read(client, found), "all messages")
        client.close()
        return found

    @staticmethod
    def _read(client: Consumer, found: list[bytes]) -> bool:
        for message in client.consume(1000, 1.0):
            assert message.error() is None
            found += [bytes(message.value() or b""), bytes(message.key() or b"")]
        return True


@pytest.fixture
def fleet(
    tmp_path: Path,
    kafka: Broker,
    start_redis: Callable[..., Redis],
    shared_clickhouse: ClickHouse,
    clickhouse_database: str,
) -> Iterator[Fleet]:
    """No node yet; all are gone at the end."""
    made = Fleet(tmp_path, kafka, start_redis(), shared_clickhouse, clickhouse_database)
    yield made
    for program in made.programs:
        program.end()
    made.home.close()


def decided(node: Program, door: str = "api") -> int:
    return node.metric(door, "sluicegate_allowed_total", "sluicegate_refused_total")


def recorded(node: Program, door: str = "api") -> int:
    return node.metric(door, "sluicegate_analytics_decisions_recorded_total")


def nobody_is_named(fleet: Fleet, clickhouse: ClickHouse, metrics: list[str]) -> None:
    """No planted client is in messages, in tables, in logs or in metrics."""
    database = fleet.settings.database
    tables = [
        name
        for (name,) in clickhouse.sql(
            f"SELECT name FROM system.tables WHERE database = '{database}' AND total_rows > 0"
        )
    ]
    messages = fleet.messages()
    assert len(messages) > 2
    assert "offenders_seconds" in tables
    logs = [text.read_text() for program in fleet.programs for text in (program.out, program.err)]
    for planted in PLANTED:
        assert not [text for text in messages if planted.encode() in text]
        assert not [text for text in (*logs, *metrics) if planted in text]
        for table in tables:
            found = clickhouse.sql(
                f"SELECT count() FROM {database}.{table} WHERE toString(tuple(*)) LIKE '%{planted}%'"
            )
            assert found == [["0"]], (planted, table)


def but_killed(counts: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Counts without the node that is killed."""
    return {key: count for key, count in counts.items() if key[0] != "killed"}


def test_every_decision_of_a_fleet_is_in_its_home_once(fleet: Fleet, shared_clickhouse: ClickHouse) -> None:
    """Broker, consumers, ClickHouse and a node are killed under load: of all others each decision is in the home once, by its outcome.

    Of the node that is killed no more than what it had not told is missing. Two nodes have one name.
    """
    free = ("--api", "127.0.0.1:0")
    one = fleet.node("serve", "twin", *free, "--grpc", "127.0.0.1:0")
    two = fleet.node("serve", "twin", *free)
    three = fleet.node("serve", "killed", *free)
    reader = fleet.consumer(shared_clickhouse)
    four = fleet.node(
        "gateway", "gate", "--gateway", "127.0.0.1:0", "--health", "127.0.0.1:0", "--upstream", one.url("api")
    )  # fmt: skip

    def load(times: int) -> None:
        fleet.check(one, "twin", times)
        fleet.check(two, "twin", times)
        fleet.check(three, "killed", times)
        fleet.call(one, "twin", times)
        fleet.visit(four, "gate", times)

    load(20)
    until(lambda: fleet.kept().total() == fleet.made(), "what was decided while all was well")
    assert fleet.kept() == fleet.answered
    # The broker dies under the nodes, and a consumer with it.
    fleet.broker.kill()
    try:
        load(20)
        reader.kill()
    finally:
        fleet.broker.start()
    reader = fleet.consumer(shared_clickhouse)
    # ClickHouse does what it is told and loses its replies; then it is gone.
    shared_clickhouse.fault("cut", match="landing", times=9)
    load(10)
    until(lambda: reader.metric("health", "sluicegate_consumer_home_errors_total") > 0, "a lost reply")
    shared_clickhouse.kill()
    try:
        load(10)
        reader.process.send_signal(signal.SIGKILL)
    finally:
        shared_clickhouse.start()
    reader = fleet.consumer(shared_clickhouse)
    metrics = [each.client.get(f"{each.url('api')}/metrics").text for each in (one, two, three)]
    # The metrics of the nodes say the same as their answers.
    assert decided(one) + decided(two) == fleet.made("twin")
    assert decided(four, "health") == fleet.made("gate")
    # A node that has told everything is killed with a few decisions untold: only those may be missing.
    until(lambda: recorded(three) == decided(three) == fleet.made("killed"), "all of it told")
    told = fleet.made("killed")
    fleet.check(three, "killed", 5)
    three.kill()
    # The others end in the middle of a second, and tell the rest.
    fleet.check(two, "twin", 10)
    fleet.visit(four, "gate", 10)
    for each in (four, two, one):
        each.stop()
    until(lambda: but_killed(fleet.kept()) == but_killed(fleet.answered), "all decisions of nodes that ended")
    until(lambda: reader.metric("health", "sluicegate_consumer_lag_messages") == 0, "no lag")
    reader.stop()
    kept = sum(count for (node, _), count in fleet.kept().items() if node == "killed")
    assert told <= kept <= fleet.made("killed")
    dropped = fleet.home.dropped(EVER)
    assert (dropped.batches, dropped.decisions) == (0, 0)
    assert {outcome for _, outcome in fleet.answered} == {"allowed", "denied", "unmatched"}
    nobody_is_named(fleet, shared_clickhouse, metrics)
