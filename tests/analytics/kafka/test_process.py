"""`sluicegate analytics …` as processes, with the real broker and the embedded home."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from real_kafka import Broker

from sluicegate.analytics.embedded import EmbeddedHome
from sluicegate.analytics.kafka import KafkaSettings, lag, lag_of, topics
from sluicegate.analytics.model import Span
from sluicegate.cli.root import run
from sluicegate.errors import AnalyticsError

pytestmark = pytest.mark.slow

ALL = Span(0, 4_000_000_000_000_000)

KILLED = '''
"""Consumes, and dies by kill -9 after the home has a block and before its offsets are committed; tells the token first."""
import os, signal, sys
from pathlib import Path
from sluicegate.analytics.embedded import EmbeddedHome
from sluicegate.analytics.kafka import Consumer, KafkaSettings
from sluicegate.clock import SystemClock

brokers, topic, data, blocks, dies = sys.argv[1:]
home = EmbeddedHome(Path(data) / "analytics.db")
left = int(blocks)

def keep(token, batches):
    global left
    home.ingest(batches)
    print(token, len(batches), flush=True)
    left -= 1
    if left == 0:
        if dies == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(0)

settings = KafkaSettings(brokers, topic, group=f"group-{topic}", session_timeout_ms=6_000)
Consumer(settings, keep, SystemClock(), linger_s=0.2).run(lambda: False)
'''


class Process:
    """A command that runs beside the test."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.err = folder / f"err-{time.monotonic_ns()}.txt"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
        with self.err.open("w") as err:
            self.popen = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )

    def lines(self, count: int) -> list[str]:
        """The next lines of standard output."""
        assert self.popen.stdout is not None
        return [self.popen.stdout.readline().rstrip("\n") for _ in range(count)]

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(60)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.err.read_text().splitlines() if line.startswith("{")]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts a command; all are gone at the end."""
    begun: list[Process] = []

    def begin(*arguments: str) -> Process:
        begun.append(Process(tmp_path, *arguments))
        return begun[-1]

    yield begin
    for each in begun:
        if each.popen.poll() is None:
            each.popen.kill()
        each.popen.wait()
        each.popen.stdout.close()


@pytest.fixture
def reader(start: Callable[..., Process], settings: KafkaSettings, tmp_path: Path) -> Callable[..., Process]:
    """Starts a consuming process with a health listener."""
    config = tmp_path / "client.properties"
    config.write_text(
        "# A member that is killed is missed soon.\nsession.timeout.ms=6000\nreconnect.backoff.max.ms=200\n"
    )

    def begin(*arguments: str) -> Process:
        kafka = ("--kafka", settings.brokers, "--kafka-topic", settings.topic, "--kafka-group", settings.group)
        return start(
            "-m", "sluicegate", "analytics", "consume", *kafka, "--kafka-config", str(config), "--linger", "100ms",
            "--health", "127.0.0.1:0", "--log-format", "json", *arguments,
        )  # fmt: skip

    return begin


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedHome]:
    found = EmbeddedHome(tmp_path / "data" / "analytics.db")
    yield found
    found.close()


def total(home: EmbeddedHome) -> int:
    """All decisions in the home; 0 where none was ever told of."""
    try:
        return sum(row.decisions for row in home.requests(ALL))
    except AnalyticsError:
        return 0


def health_of(process: Process) -> str:
    kafka, home, health = process.lines(3)
    assert (kafka.split()[0], home.split()[0], health.split()[0]) == ("kafka", "home", "health"), (
        process.err.read_text()
    )
    return health.split()[1]


def metric(base: str, name: str) -> float:
    for line in httpx.get(f"{base}/metrics", timeout=60).text.splitlines():
        if line.startswith(f"sluicegate_consumer_{name} "):
            return float(line.split()[1])
    return -1.0


def test_a_process_consumes_and_ends(settings, sink, tell, reader, embedded, wait_until) -> None:
    """It fills the embedded home, tells of itself, and SIGTERM ends it with everything committed and status 0."""
    made = tell(sink, 4, range(25))
    process = reader("--data", "data")
    base = health_of(process)
    wait_until(lambda: metric(base, "decisions_total") == made, "all decisions in the home")
    wait_until(lambda: metric(base, "lag_messages") == 0, "no lag")
    assert httpx.get(f"{base}/readyz", timeout=60).json() == {"ready": True, "ok": True, "partitions": 3, "lag": 0}
    assert httpx.get(f"{base}/livez", timeout=60).status_code == 200
    assert metric(base, "batches_total") == 100
    assert process.stop() == 0
    assert total(embedded) == made
    assert [place.lag for place in lag_of(settings)] == [0, 0, 0]
    assert [event["event"] for event in process.events()][-1] == "stopped"


def test_kill_between_insert_and_commit(settings, sink, tell, start, tmp_path, embedded) -> None:
    """The next process reads the same block again, under the same token, and the home counts it once."""
    script = tmp_path / "consumes.py"
    script.write_text(KILLED)
    (tmp_path / "data").mkdir()
    made = tell(sink, 1, range(20))
    first = start(str(script), settings.brokers, settings.topic, "data", "1", "kill")
    assert first.popen.wait(60) == -signal.SIGKILL, first.err.read_text()
    (token, count), *rest = [line.split() for line in first.popen.stdout.read().splitlines()]
    assert (int(count), rest) == (20, [])
    assert sum(place.lag for place in lag_of(settings)) == 20, "nothing was committed"
    # There is more by now; the block stays what it was.
    made += tell(sink, 1, range(20, 30))
    second = start(str(script), settings.brokers, settings.topic, "data", "2", "end")
    assert second.popen.wait(60) == 0, second.err.read_text()
    told = [line.split() for line in second.popen.stdout.read().splitlines()]
    assert told[0] == [token, "20"]
    assert total(embedded) == made


def test_two_processes_one_killed(settings, sink, tell, reader, embedded, wait_until) -> None:
    """Two share the partitions and one home; when one is killed the other goes on with its part, and every decision is counted once."""
    one, two = reader("--data", "data"), reader("--data", "data")
    bases = [health_of(each) for each in (one, two)]
    wait_until(lambda: sorted(metric(base, "partitions") for base in bases) == [1, 2], "a share each")
    made = tell(sink, 8, range(20))
    wait_until(lambda: total(embedded) == made, "all decisions in the home")
    one.popen.kill()
    made += tell(sink, 8, range(20, 40))
    wait_until(lambda: total(embedded) == made, "all decisions in the home, of one process")
    assert two.stop() == 0


def test_from_a_node_to_the_home(settings, start, reader, embedded, tmp_path, wait_until) -> None:
    """What a server has decided when SIGTERM ends it is what the home has, exactly, by outcome."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nrules:\n  - {name: login, match: {path: /login}, per: [ip], quota: 50/minute}\n")
    kafka = ("--kafka", settings.brokers, "--kafka-topic", settings.topic)
    node = start(
        "-m", "sluicegate", "serve", "--rules", str(rules), "--data", "node", "--api", "127.0.0.1:0", *kafka
    )  # fmt: skip
    api = next(line.split()[1] for line in iter(lambda: node.lines(1)[0], "") if line.startswith("api "))
    with httpx.Client(base_url=api, timeout=60) as client:
        answers = [
            client.post("/v1/check", json={"facts": {"path": "/login", "ip": "192.0.2.1"}}).status_code
            for _ in range(120)
        ]
    assert node.stop() == 0, node.err.read_text()
    refused = answers.count(429)
    assert refused > 0
    process = reader("--data", "data")
    health_of(process)
    wait_until(lambda: total(embedded) == len(answers), "all decisions in the home")
    by = {row.outcome: row.decisions for row in embedded.requests(ALL, by=["outcome"])}
    assert by == {"allowed": len(answers) - refused, "denied": refused}
    dropped = embedded.dropped(ALL)
    assert (dropped.batches, dropped.decisions) == (0, 0)
    assert process.stop() == 0


def test_commands_about_topic_and_state(kafka: Broker, tmp_path, make_batch, capsys) -> None:
    """`topic` makes both topics once and says what is there; `status` tells of lag and home as JSON."""
    config = tmp_path / "client.properties"
    config.write_text("client.id=test\nsocket.timeout.ms=60000\n")
    flags = ("--kafka", kafka.address, "--kafka-topic", "by-command", "--kafka-config", str(config))

    def told(*arguments: str) -> str:
        assert run(["analytics", *arguments]) == 0
        return capsys.readouterr().out

    made = told("topic", *flags, "--partitions", "2")
    assert made == "topic by-command made, partitions: 2\ntopic by-command.dead made, partitions: 1\n"
    again = told("topic", *flags)
    assert again == "topic by-command is there, partitions: 2, not 12\ntopic by-command.dead is there, partitions: 1\n"
    (tmp_path / "data").mkdir()
    home = EmbeddedHome(tmp_path / "data" / "analytics.db")
    home.ingest([make_batch("n", 1, 5)])
    home.close()
    found = json.loads(told("status", *flags, "--data", str(tmp_path / "data"), "--json"))
    assert found["kafka"]["lag"] == found["kafka"]["missing"] == 0
    assert [place["committed"] for place in found["kafka"]["partitions"]] == [None, None]
    assert (found["home"]["kind"], found["home"]["batches"]) == ("embedded", 1)
    text = told("status", *flags, "--data", str(tmp_path / "data"))
    assert "embedded, schema" in text
    assert "by-command" in text


def test_status_without_a_broker(tmp_path, capsys, monkeypatch, make_batch) -> None:
    """It is said in one line, with status 2, within the time of one request."""
    for module in (lag, topics):
        monkeypatch.setattr(module, "KAFKA_REQUEST_TIMEOUT_S", 0.5)
    home = EmbeddedHome(tmp_path / "analytics.db")
    home.ingest([make_batch("n", 1)])
    home.close()
    for command in (("topic",), ("status", "--data", str(tmp_path))):
        assert run(["analytics", *command, "--kafka", "127.0.0.1:1"]) == 2
        text = capsys.readouterr().err
        assert "Kafka at 127.0.0.1:1 cannot be asked" in text
        assert len(text.splitlines()) == 1


@pytest.fixture
def own_logger() -> Iterator[None]:
    """What a command sets about log lines is set back."""
    logger = logging.getLogger("sluicegate")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "--kafka: needed"),
        (("--kafka", "nowhere"), "'nowhere' is not HOST:PORT"),
        (("--kafka", "127.0.0.1:1", "--kafka-config", "none"), "cannot read none"),
        (("--kafka", "127.0.0.1:1", "--linger", "10m"), "--linger: must be 0 to 300 s"),
        (("--kafka", "127.0.0.1:1", "--data", "/proc/none"), "/proc/none"),
        (("--kafka", "127.0.0.1:1", "--clickhouse", "http://x"), "clickhouse://"),
    ],
)
def test_bad_flags(flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], own_logger: None) -> None:
    """Each is one line on standard error, and status 2."""
    assert run(["analytics", "consume", *flags]) == 2
    text = capsys.readouterr().err
    assert says in text
    assert len(text.splitlines()) == 1
