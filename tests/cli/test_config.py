"""Where the values of flags come from: flag, environment, file, default, in this order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluicegate.app.analytics.settings import AnalyticsSettings
from sluicegate.app.control.settings import ControlSettings
from sluicegate.app.settings import Settings
from sluicegate.cli import serve
from sluicegate.doors.listen import Address

Run = Callable[..., Any]


def test_defaults(sluicegate: Run, served: list[Settings]) -> None:
    """Without flags ``up`` listens on loopback, with the demo backend and the memory store."""
    assert sluicegate("up").status == 0
    assert served == [
        Settings(
            gateway=Address("127.0.0.1", 8080),
            api=Address("127.0.0.1", 8081),
            grpc=Address("127.0.0.1", 8082),
            grpc_by_default=True,
            control=ControlSettings(),
            control_by_default=True,
            analytics=AnalyticsSettings(),
        )
    ]
    assert served[0].demo


def test_an_empty_store_is_a_mistake(sluicegate: Run) -> None:
    """``--store "$STORE"`` without the variable does not begin to count in memory, where each process has the whole limit."""
    refused = sluicegate("serve", "--store", "")
    assert refused.status == 2
    assert "store: " in refused.err


def test_grpc_without_its_extra(sluicegate: Run, served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    """``up`` goes on without a listener that nobody asked for; whoever asks for it is left to the server, which says what is missing."""
    monkeypatch.setattr(serve, "is_installed", lambda: False)
    assert sluicegate("up").status == 0
    assert sluicegate("up", "--grpc", "127.0.0.1:9").status == 0
    assert [(got.grpc, got.not_installed) for got in served] == [(None, ("grpc",)), (Address("127.0.0.1", 9), ())]


@pytest.mark.parametrize("command", ["up", "serve"])
def test_grpc_off(sluicegate: Run, served: list[Settings], monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """``off`` is no listener, by flag, environment or file, also as YAML reads the bare word."""
    assert sluicegate(command, "--grpc", "off").status == 0
    for text in ("off", "'off'"):
        Path("sluicegate.yaml").write_text(f"grpc: {text}\n")
        assert sluicegate(command).status == 0
    Path("sluicegate.yaml").write_text("grpc: 127.0.0.1:9\n")
    assert sluicegate(command).status == 0
    monkeypatch.setenv("SLUICEGATE_GRPC", "off")
    assert sluicegate(command).status == 0
    assert [got.grpc for got in served] == [None, None, None, Address("127.0.0.1", 9), None]
    assert not any(got.grpc_by_default or got.not_installed for got in served)


def test_off_is_for_grpc(sluicegate: Run, served: list[Settings]) -> None:
    """The other listeners have no such word, in the file either."""
    Path("sluicegate.yaml").write_text("api: off\n")
    refused = sluicegate("serve")
    assert (refused.status, served) == (2, [])
    assert "api must be text or a number, got False" in refused.err


def test_keys_of_another_server(sluicegate: Run, served: list[Settings]) -> None:
    """A key that is a flag of another serving command only is not used, and the server is to say so; those of other commands are no matter."""
    Path("sluicegate.yaml").write_text("health: 127.0.0.1:9\ncost: 3\napi: 127.0.0.1:8\nbody-timeout: 1s\n")
    for command in ("up", "serve"):
        assert sluicegate(command).status == 0
    assert [got.unused_keys for got in served] == [("health",), ("health", "body-timeout")]


def test_grpc_off_loopback(sluicegate: Run, served: list[Settings]) -> None:
    """Where other machines reach the listener it needs the token, which is the API's."""
    refused = sluicegate("serve", "--grpc", "0.0.0.0:8082")
    assert refused.status == 2
    assert "--api-token" in refused.err
    assert sluicegate("serve", "--grpc", "0.0.0.0:8082", "--api-token", "secret", "--grpc-age", "5m").status == 0
    assert [(got.calling.token, got.calling.age_s) for got in served] == [("secret", 300.0)]


def test_store_of_several_workers(sluicegate: Run, served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names no store gets one that all workers share; who names one gets that, by file or environment too."""
    assert sluicegate("up", "--workers", "3").status == 0
    Path("sluicegate.yaml").write_text("workers: 2\nnodes: 7\n")
    assert sluicegate("serve").status == 0
    monkeypatch.setenv("SLUICEGATE_STORE", "redis://:secret@host")
    assert sluicegate("serve", "--workers", "1").status == 0
    assert [(got.workers, got.nodes, got.store) for got in served] == [
        (3, 1, "embedded://"),
        (2, 7, "embedded://"),
        (1, 7, "redis://:secret@host"),
    ]
    monkeypatch.setenv("SLUICEGATE_STORE", "memory://")
    refused = sluicegate("serve")
    assert refused.status == 2
    assert "each worker would admit the whole limit" in refused.err


@pytest.mark.parametrize("where", ["default", "file", "environment", "flag"])
def test_precedence(
    sluicegate: Run, served: list[Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    """The flag wins over the environment, that over the file, that over the default."""
    wanted = {"default": 10.0, "file": 1.0, "environment": 0.5, "flag": 120.0}
    arguments = ["serve"]
    if where != "default":
        (tmp_path / "sluicegate.yaml").write_text("drain-timeout: 1\n")
    if where in ("environment", "flag"):
        monkeypatch.setenv("SLUICEGATE_DRAIN_TIMEOUT", "500ms")
    if where == "flag":
        arguments += ["--drain-timeout", "2m"]
    assert sluicegate(*arguments).status == 0
    assert served[0].drain_timeout_s == wanted[where]


def test_file_holds_lists_switches_and_numbers(sluicegate: Run, served: list[Settings], tmp_path: Path) -> None:
    """Every kind of flag has its form in the file, and keys of other commands do no harm."""
    (tmp_path / "other.yaml").write_text(
        "upstream: [http://a:1, http://b:2]\nproxy-protocol: true\npreserve-host: false\nheld-max: 7\n"
        "gateway: '[::1]:80'\nheaders: x-ratelimit,ietf\ncost: 3\nrules: r.yaml\nvia:\n"
    )
    assert sluicegate("gateway", "--config", "other.yaml").status == 0
    settings = served[0]
    assert settings.upstreams == ("http://a:1", "http://b:2")
    assert settings.proxying.proxy_protocol
    assert not settings.proxying.preserve_host
    assert settings.proxying.held_max == 7
    assert settings.gateway == Address("::1", 80)
    assert settings.headers == "x-ratelimit,ietf"
    assert settings.rules == Path("r.yaml")
    assert settings.proxying.via == "sluicegate"


def test_config_from_the_environment(
    sluicegate: Run, served: list[Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """``SLUICEGATE_CONFIG`` names the file; several upstreams in a variable are separated by blanks."""
    (tmp_path / "conf.yaml").write_text("workers: 1\nstore: memory://?max_counters=9\n")
    monkeypatch.setenv("SLUICEGATE_CONFIG", "conf.yaml")
    monkeypatch.setenv("SLUICEGATE_UPSTREAM", "http://a:1 http://b:2")
    monkeypatch.setenv("SLUICEGATE_PROXY_PROTOCOL", "1")
    assert sluicegate("gateway").status == 0
    assert served[0].store == "memory://?max_counters=9"
    assert served[0].upstreams == ("http://a:1", "http://b:2")
    assert served[0].proxying.proxy_protocol


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("drain-dealy: 3", ("unknown key 'drain-dealy'", "did you mean 'drain-delay'?")),
        ("drain_delay: 3", ("unknown key 'drain_delay'", "did you mean 'drain-delay'?")),
        ("- a", ("must be a mapping",)),
        ("a: [", ("not YAML",)),
        ("store: [a, b]", ("store takes one value",)),
        ("store: {a: b}", ("store must be text or a number",)),
        ("store: true", ("store must be text or a number",)),
        ("proxy-protocol: 3", ("proxy-protocol must be true or false",)),
        ("workers: many", ("--workers", "'many'", "(from sluicegate.yaml)")),
        ("api: nowhere", ("--api", "'nowhere'", "(from sluicegate.yaml)")),
        ("a: " + "x" * 70_000, ("larger than",)),
    ],
)
def test_bad_file_is_one_line(
    sluicegate: Run, served: list[Settings], tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    """What is wrong in the file is said with the file, the key and the value."""
    (tmp_path / "sluicegate.yaml").write_text(text)
    ran = sluicegate("up")
    assert (ran.status, served) == (2, [])
    assert ran.err.count("\n") == 1
    for word in (*words, "sluicegate.yaml"):
        assert word in ran.err


def test_bad_variable_is_named(sluicegate: Run, served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong in the environment is said with the variable."""
    monkeypatch.setenv("SLUICEGATE_DRAIN_DELAY", "later")
    ran = sluicegate("up")
    assert (ran.status, served) == (2, [])
    assert "SLUICEGATE_DRAIN_DELAY" in ran.err


def test_empty_file_is_no_file(sluicegate: Run, served: list[Settings], tmp_path: Path) -> None:
    """A file without keys changes nothing."""
    (tmp_path / "sluicegate.yaml").write_text("# nothing yet\n")
    assert sluicegate("up").status == 0
    assert len(served) == 1


@pytest.mark.parametrize("value", ["-1", "1e9", "inf", "nan", "5h", "", "99999999999999999999s", "2678401", "44641m"])
def test_impossible_duration(sluicegate: Run, value: str) -> None:
    """A duration that is none, or longer than a month, is bad usage naming the flag: no timer can be asked for it."""
    ran = sluicegate("serve", f"--drain-delay={value}")
    assert ran.status == 2
    assert "--drain-delay" in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "flag", "value"),
    [
        (("serve",), "--api-idle", "0s"),
        (("serve",), "--api-fields-max", "0"),
        (("gateway", "--upstream", "http://127.0.0.1:1"), "--connections-max", "0"),
        (("gateway", "--upstream", "http://127.0.0.1:1"), "--balance", "sideways"),
    ],
)
def test_setting_out_of_range_names_its_flag(sluicegate: Run, command: tuple[str, ...], flag: str, value: str) -> None:
    """What a door refuses as a setting is said with the flag that set it."""
    ran = sluicegate(*command, flag, value)
    assert ran.status == 2
    assert f"{flag}: " in ran.err
    assert len(ran.err.splitlines()) == 1


def test_control_without_its_extra(sluicegate: Run, served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    """``up`` goes on without a rules service that nobody asked for; whoever asks for it is told what is missing, and ``off`` is no question."""
    monkeypatch.setattr(serve, "is_control_installed", lambda: False)
    assert sluicegate("up").status == 0
    assert (served[0].control, served[0].not_installed) == (None, ("control",))
    refused = sluicegate("up", "--control", "127.0.0.1:9")
    assert refused.status == 2
    assert "sluicegate[control]" in refused.err
    assert sluicegate("up", "--control", "off").status == 0
    assert (served[1].control, served[1].not_installed) == (None, ())


def test_a_service_elsewhere_and_one_here(sluicegate: Run, served: list[Settings]) -> None:
    """With ``--control-url`` the rules come from there: ``up`` starts no service of its own, and both at once are refused."""
    elsewhere = ("--control-url", "http://127.0.0.1:9", "--control-token", "token-of-a-node")
    assert sluicegate("up", *elsewhere).status == 0
    assert served[0].control is None
    assert sluicegate("up", *elsewhere, "--control", "127.0.0.1:9").status == 2
    assert len(served) == 1


def test_the_service_of_up_off_loopback_needs_tls(sluicegate: Run, served: list[Settings]) -> None:
    """A rules service that other machines reach has TLS, or is said to have it in front."""
    assert sluicegate("up", "--control", "0.0.0.0:8090").status == 2
    assert sluicegate("up", "--control", "0.0.0.0:8090", "--allow-plaintext").status == 0
    assert sluicegate("up", "--control", "0.0.0.0:8090", "--tls-cert", "a.pem", "--tls-key", "a.key").status == 0
    assert [got.control is not None and got.control.scheme for got in served] == ["http", "https"]
