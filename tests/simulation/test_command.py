"""``sluicegate sim fleet``: what it prints, what it refuses, and that the page shows what it prints."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict
from pathlib import Path

import pytest

from sluicegate.cli.root import run as run_command
from sluicegate.simulation import Calibration

PAGE = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"
SMALL = ("--gateways", "2", "--rate", "200", "--keys", "1000", "--masters", "2", "--seconds", "1s")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration file, no variables of ours."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "GATEWAYS",
        "RATE",
        "KEYS",
        "MASTERS",
        "SECONDS",
        "SEED",
        "SCENARIO",
        "CALIBRATION",
        "AFFINITY",
        "JSON",
    ):
        monkeypatch.delenv(f"SLUICEGATE_{name}", raising=False)


def test_the_page_shows_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The first example of the page is what its command prints with the costs that are shipped."""
    found = re.search(
        r"^```console\n\$ sluicegate (sim fleet[^\n]*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    assert run_command(shlex.split(found[1])) == 0
    assert capsys.readouterr().out == found[2], "the page is old: scripts/simulation_page writes it anew"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` prints one object with the plan, the costs, the results and every quarter of a second."""
    assert run_command(["sim", "fleet", *SMALL, "--seed", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["plan"]["seed"], len(report["masters"]), len(report["timeline"])) == (3, 2, 4)
    assert report["costs"]["rtt_us"] > 0


def test_another_calibration(tmp_path: Path, costs: Calibration, capsys: pytest.CaptureFixture[str]) -> None:
    """``--calibration`` takes a measured file, and the report says its costs."""
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(asdict(costs)))
    assert run_command(["sim", "fleet", *SMALL, "--calibration", str(file)]) == 0
    assert "Measured (a machine, a server, a Python, 2026-01-01)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--gateways", "0"), ("--gateways", "100000"), ("--rate", "0"), ("--rate", "9999999999"), ("--rate", "9000000"), ("--keys", "0"),
        ("--masters", "0"), ("--masters", "1000"), ("--seconds", "0"), ("--seconds", "601s"), ("--seconds", "soon"), ("--scenario", "sunny"), ("--seed", "one"),
    ],
)  # fmt: skip
def test_errors_name_the_flag(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A number out of range, or a word that is none, ends with status 2 and a line that names its flag."""
    assert run_command(["sim", "fleet", flag, value]) == 2
    told = capsys.readouterr().err
    assert flag in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rtt_us": "fast"}, "rtt_us must be a number, got 'fast'"),
        ({"rtt_us": True}, "rtt_us must be a number, got True"),
        ({"rtt_us": float("nan")}, "rtt_us must be a number, got nan"),
        ({"ask_us": 0}, "ask_us must be above 0 and at most 1000000, got 0"),
        ({"ask_us": 2e6}, "ask_us must be above 0 and at most 1000000, got 2000000.0"),
        ({"machine": 5}, "machine must be text, got 5"),
        ({"speed": 1}, "speed is unknown"),
        ({"server": None}, "server must be text, got None"),
    ],
)
def test_a_wrong_calibration(
    tmp_path: Path, costs: Calibration, capsys: pytest.CaptureFixture[str], change: dict[str, object], told: str
) -> None:
    """A wrong file of costs is named together with its field."""
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(asdict(costs) | change))
    assert run_command(["sim", "fleet", *SMALL, "--calibration", str(file)]) == 2
    assert f"{file}: {told}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{}", "ask_us is missing"),
        (b"[]", "must be one JSON object"),
        (b"{", "is not JSON"),
        (b"\xff", "is not UTF-8"),
        (b" " * 70_000, "is larger than 65536 bytes"),
        (b"[" * 60_000, "is not JSON"),
        (None, "No such file or directory"),
    ],
)
def test_no_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, told: str) -> None:
    """A file that is no calibration is named, and what is wrong with it."""
    file = tmp_path / "costs.json"
    if content is not None:
        file.write_bytes(content)
    assert run_command(["sim", "fleet", *SMALL, "--calibration", str(file)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert str(file) in error
