"""What supervisor and worker say to each other arrives as it was said."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import pytest

from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.analytics.embedded import Retention
from sluicegate.app.analytics.settings import AnalyticsSettings
from sluicegate.app.control.settings import ControlSettings
from sluicegate.app.feed.settings import FeedSettings
from sluicegate.app.regions import RegionSettings
from sluicegate.app.settings import Settings
from sluicegate.app.tls import TlsFiles
from sluicegate.app.workers.messages import (
    Failed,
    FromSupervisor,
    Ready,
    Restarts,
    Start,
    Stop,
    encode,
    from_supervisor,
    from_worker,
)
from sluicegate.doors.gateway.settings import Settings as Proxying
from sluicegate.doors.grpc.settings import GrpcSettings
from sluicegate.doors.http.settings import HttpSettings
from sluicegate.doors.listen import Address
from sluicegate.errors import InternalError
from sluicegate.stores.near.settings import NearSettings
from sluicegate.stores.regional.plan import Plan

SETTINGS = Settings(
    rules=Path("/etc/rüles.yaml"),
    store="redis://:p%40ss@host/1?timeout_ms=5",
    workers=4,
    nodes=9,
    near=NearSettings(terms=LeaseTerms(ttl_us=40_000), horizon_us=10_000, denials_max=3),
    regions=RegionSettings("eu", Plan({"eu": 2, "us": 1}, Fraction(1, 3)), {"us": "redis://us"}),
    data=Path("elsewhere"),
    gateway=Address("::1", 8080),
    api=Address(path="/run/api.sock"),
    health=Address("127.0.0.1", 1),
    grpc=Address("127.0.0.1", 2),
    upstreams=("http://127.0.0.1:1", "unix:/x"),
    headers="ietf",
    proxying=Proxying(via="", eject_after=0, tls_ca_file="/ca"),
    serving=HttpSettings(api_token="secret token", body_s=0.5),
    grpc_engine="grpcio",
    calling=GrpcSettings(token="secret token", age_s=60.0),
    retry_jitter_s=3.0,
    authz_nginx_deny_status=401,
    drain_delay_s=1.5,
    drain_timeout_s=2.5,
    log_format="json",
    not_installed=("grpc",),
    grpc_by_default=True,
    control=ControlSettings(admin_token="secret of an admin", data=Path("elsewhere")),
    control_by_default=True,
    node_name="edge",
    feed=FeedSettings(url="unix:/run/feed.sock", token="secret-of-a-node", push="off", wait_s=0),
    tls={"api": TlsFiles(Path("a.pem"), Path("a.key"), Path("ca.pem"))},
    unused_keys=("upstream",),
    analytics=AnalyticsSettings(
        mode="kafka",
        subjects="plain",
        secret_file=Path("secrets"),
        retention=Retention(seconds_s=7_200),
        kafka="127.0.0.1:1",
        kafka_topic="topic",
        kafka_config=Path("client.properties"),
        clickhouse="clickhouse://a@h/d",
    ),
    otel=True,
)


def test_every_setting_arrives() -> None:
    """Settings in which no field has its default are equal after the way; the message is one line."""
    default = Settings()
    assert [
        field.name for field in fields(Settings) if getattr(SETTINGS, field.name) == getattr(default, field.name)
    ] == []
    start = Start(2, 4, SETTINGS, Path("/run/x"), {"api": 7}, Restarts({3: 1}, 2))
    line = encode(start)
    assert line.count(b"\n") == 1
    assert from_supervisor(line) == start


@pytest.mark.parametrize("message", [Stop(), Stop(force=True), Restarts({1: 2, 300: 1}, 4), Restarts()])
def test_messages_to_a_worker(message: FromSupervisor) -> None:
    """Each is told from the others by its type."""
    assert from_supervisor(encode(message)) == message


def test_messages_of_a_worker() -> None:
    """A reason of several lines is one line on the way."""
    ready = Ready([("gateway", "http://[::1]:8080"), ("private", "unix:/x")])
    assert from_worker(encode(ready)) == ready
    assert from_worker(encode(Failed("one\ntwo"))) == Failed("one\ntwo")


def test_what_has_no_form_is_our_fault() -> None:
    """A message with a value that cannot be sent is an error of this program that names its type, and nothing is sent."""
    with pytest.raises(InternalError, match="holds a object"):
        encode(Failed(object()))  # type: ignore[arg-type]
