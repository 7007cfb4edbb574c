"""The real Apache Kafka broker for the tests of any folder: one node that is its own controller, on free ports of 127.0.0.1.

Loaded by the root ``conftest.py``. ``scripts/broker`` fetches it; Java runs it. It dies with the test run.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from real_servers import free_port_now

POM = Path(__file__).resolve().parents[1] / "broker" / "pom.xml"
# Quick to start, small, and nothing is compiled for a long life.
JAVA = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
READY_S = 60
CLUSTER = "c2x1aWNlZ2F0ZS10ZXN0cw"
NUMBERS = itertools.count(1)

PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
controlled.shutdown.enable=false
"""


def jars() -> Path | None:
    """The folder of the broker's jars; None where it was not fetched."""
    version = re.search(r"<kafka.version>(.*)</kafka.version>", POM.read_text("utf-8"))
    assert version is not None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "sluicegate" / f"kafka-{version[1]}"
    return folder if folder.is_dir() else None


class Broker:
    """A broker in a folder of its own. It can be stopped, killed, and started again on the same port and data."""

    def __init__(self, jars: Path, folder: Path) -> None:
        self._jars = jars
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port_now()
        text = PROPERTIES.format(port=self.port, controller=free_port_now(), folder=folder)
        (folder / "server.properties").write_text(text, "utf-8")
        arguments = ["format", "-t", CLUSTER, "-c", str(folder / "server.properties")]
        subprocess.run(self._java("kafka.tools.StorageTool", *arguments), check=True, capture_output=True, timeout=110)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *, wait: bool = True) -> None:
        """Start it; with ``wait`` it answers when this returns."""
        assert self._process is None
        setpriv = shutil.which("setpriv")
        command = [*([setpriv, "--pdeathsig", "KILL"] if setpriv else []), *self._java("kafka.Kafka")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, str(self._folder / "server.properties")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Until it answers."""
        assert self._process is not None
        admin, until = self.admin(), time.monotonic() + READY_S
        while True:
            assert self._process.poll() is None, f"the broker ended: {(self._folder / 'log').read_text()}"
            try:
                if admin.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                assert time.monotonic() < until, "the broker does not answer"

    def stop(self) -> None:
        """As an operator stops it: everything is written first."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def admin(self) -> AdminClient:
        """Changes topics; says nothing on standard error while the broker is away."""
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0, "reconnect.backoff.max.ms": 200})

    def new_topic(self, partitions: int = 1, *, name: str = "", **settings: str) -> str:
        """The name of a new topic; without ``name`` one that nobody used before."""
        name = name or f"test-{next(NUMBERS)}"
        admin = self.admin()
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)], request_timeout=30)[name].result(40)
        return name

    def offsets(self, topic: str) -> list[int]:
        """How many messages each partition of a topic has had."""
        client = Consumer({"bootstrap.servers": self.address, "group.id": "offsets", "log_level": 0})
        try:
            count = len(client.list_topics(topic, timeout=30).topics[topic].partitions)
            places = [TopicPartition(topic, number) for number in range(count)]
            return [client.get_watermark_offsets(place, timeout=30)[1] for place in places]
        finally:
            client.close()

    def delete_before(self, topic: str, offsets: list[int]) -> None:
        """Delete the messages before an offset of each partition, as retention does."""
        places = [TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)]
        admin = self.admin()
        for answer in admin.delete_records(places, request_timeout=30).values():
            answer.result(40)

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        admin, until = self.admin(), time.monotonic() + READY_S
        admin.delete_topics([topic], request_timeout=30)[topic].result(40)
        while topic in admin.list_topics(timeout=30).topics:
            assert time.monotonic() < until, "the topic is still there"
            time.sleep(0.05)

    def _java(self, *arguments: str) -> list[str]:
        java = shutil.which("java")
        assert java is not None
        return [java, *JAVA, "-cp", f"{self._jars}/*", *arguments]


@pytest.fixture(scope="session")
def broker_jars() -> Path | None:
    """The folder of the broker's jars; None where there is none or no Java."""
    return jars() if shutil.which("java") else None


@pytest.fixture(scope="session")
def shared_broker(broker_jars: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | None]:
    """One broker for all tests, which leave it running; None where there is none."""
    if broker_jars is None:
        yield None
        return
    made = Broker(broker_jars, tmp_path_factory.mktemp("kafka"))
    with contextlib.ExitStack() as stack:
        stack.callback(made.kill)
        made.start()
        yield made


@pytest.fixture
def kafka(shared_broker: Broker | None, require_program: Callable[[str], str]) -> Broker:
    """The shared broker, running; the test is skipped where there is none (it fails where nothing may be skipped)."""
    if shared_broker is None:
        require_program("java")
        require_program("kafka (scripts/broker)")
    assert shared_broker is not None
    return shared_broker
