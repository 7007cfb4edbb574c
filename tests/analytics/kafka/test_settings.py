"""What is wrong with the settings is said before anything is sent, and no secret is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicegate.analytics.kafka import Consumer, KafkaSettings, KafkaSink, TopicSettings
from sluicegate.analytics.kafka.settings import OWNED, read_properties
from sluicegate.bounds import KAFKA_CONFIG_BYTES_MAX
from sluicegate.clock import ManualClock
from sluicegate.errors import ConfigurationError


@pytest.mark.parametrize("brokers", ["", "host", "host:", "host:0", "host:70000", "http://host:1", "a:1,,b:2", "a b:1"])
def test_bad_addresses(brokers: str) -> None:
    """Each address is HOST:PORT."""
    with pytest.raises(ConfigurationError, match=r"--kafka: .* is not HOST:PORT"):
        KafkaSettings(brokers)


def test_good_addresses() -> None:
    """Several, with spaces, and IPv6 in brackets."""
    assert KafkaSettings("a:1, b.c:9092,[::1]:9").topic == "sluicegate.decisions.v1"


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250, "tökens"])
def test_bad_names(name: str) -> None:
    """Kafka takes no such topic or group; said before it has to."""
    with pytest.raises(ConfigurationError, match="--kafka-topic"):
        KafkaSettings("a:1", name)
    with pytest.raises(ConfigurationError, match="--kafka-group"):
        KafkaSettings("a:1", group=name)


@pytest.mark.parametrize("key", sorted(OWNED))
def test_what_is_promised_cannot_be_set_away(key: str) -> None:
    """The properties on which delivery depends are refused, with the reason."""
    with pytest.raises(ConfigurationError, match=f"{key} cannot be set: "):
        KafkaSettings("a:1", properties={key: "1"})


def test_properties_are_read(tmp_path: Path) -> None:
    """Comments and blank lines are left out; a value may hold the sign itself."""
    file = tmp_path / "client.properties"
    file.write_text("# ours\n\nsasl.username = node\nsasl.password=a=b # c\nssl.ca.location=\n")
    assert read_properties(file) == {"sasl.username": "node", "sasl.password": "a=b # c", "ssl.ca.location": ""}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"sasl.password secret\n", "line 1: must be name=value"),
        (b"a.b=1\nSecret Word=2\n", "line 2: must be name=value"),
        (b"a.b=1\na.b=2\n", "line 2: a.b is there twice"),
        (b"error_cb=secret\n", "line 1: must be name=value"),
        (b"\xff=secret\n", "is not UTF-8"),
        (b"#" * (KAFKA_CONFIG_BYTES_MAX + 1), "is larger than"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, says: str) -> None:
    """The line is named and not shown: it may hold a password."""
    file = tmp_path / "client.properties"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=says) as caught:
        read_properties(file)
    assert "ecret" not in str(caught.value).replace(str(tmp_path), "")


def test_missing_file(tmp_path: Path) -> None:
    """The reason is the system's."""
    with pytest.raises(ConfigurationError, match=r"cannot read .*No such file"):
        read_properties(tmp_path / "none")


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"sasl.pasword": "secret"}, "No such configuration property"),
        ({"retry.backoff.ms": "secret"}, "retry.backoff.ms"),
        ({"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}, "sasl.username and sasl.password"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/nowhere"}, "ssl.ca.location"),
    ],
)
def test_what_the_library_refuses(properties: dict[str, str], says: str) -> None:
    """An unknown name or a bad value is an error when the client is made, and shows no value."""
    settings = KafkaSettings("127.0.0.1:1", properties=properties)
    for make in (lambda: KafkaSink(settings, ManualClock()), lambda: Consumer(settings, print, ManualClock())):
        with pytest.raises(ConfigurationError, match=f"--kafka-config: .*{says}") as caught:
            make()
        assert "secret" not in str(caught.value)


def test_settings_show_no_secret() -> None:
    """Not in logs of whoever prints them."""
    assert "hush" not in repr(KafkaSettings("a:1", properties={"sasl.password": "hush"}))


@pytest.mark.parametrize("values", [{"partitions": 0}, {"replicas": 0}, {"partitions": 10_001}, {"retention_s": 59}])
def test_bad_topics(values: dict[str, int]) -> None:
    """Numbers that make no topic are refused with the flag's name."""
    with pytest.raises(ConfigurationError, match=r"--(partitions|replicas|topic-retention): must be"):
        TopicSettings(**values)


def test_replicas_that_acknowledge() -> None:
    """With three copies two must be written before a batch counts as delivered."""
    assert TopicSettings(replicas=3).properties()["min.insync.replicas"] == "2"
    assert TopicSettings(replicas=1).properties()["min.insync.replicas"] == "1"
