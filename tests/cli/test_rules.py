"""``sluicegate rules``: check, bounds and diff."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


def test_valid_file(sluicegate: Run, rules: Path) -> None:
    """A valid file is said to be so, with the number of its rules; exit status 0."""
    ran = sluicegate("rules", "check", str(rules))
    assert ran.status == 0
    assert ran.out.startswith(f"{rules}: valid, 2 rule(s), digest ")


def test_invalid_file_lists_every_problem(sluicegate: Run, rules: Path) -> None:
    """All problems are listed with file, line, rule, field and suggestion; exit status 1."""
    rules.write_text(rules.read_text().replace("methods", "method").replace("5/minute", "5/minuet"))
    ran = sluicegate("rules", "check", str(rules))
    assert ran.status == 1
    first, second = ran.out.splitlines()
    assert first.startswith(f"{rules}:5: rule 'login': match.method")
    assert "did you mean 'methods'?" in first
    assert second.startswith(f"{rules}:7: rule 'login': quota")


def test_warnings_do_not_fail(sluicegate: Run, rules: Path) -> None:
    """A file with warnings only is valid; they are shown and counted."""
    text = "identity:\n  trusted_peers: [0.0.0.0/0]\n  api_key: {header: X-API-Key}\nrules:\n"
    rules.write_text("version: 1\n" + text + "  - {name: a, per: [api_key], quota: 5/minute}\n")
    ran = sluicegate("rules", "check", str(rules))
    assert ran.status == 0
    assert "warning" in ran.out


def test_check_as_json(sluicegate: Run, rules: Path) -> None:
    """``--json`` gives the same as one object."""
    assert json.loads(sluicegate("rules", "check", "--json", str(rules)).out) == {
        "valid": True,
        "rules": 2,
        "problems": [],
    }
    rules.write_text("version: 1\nrules: [{name: a, qouta: 1/s}]\n")
    ran = sluicegate("rules", "check", "--json", str(rules))
    content = json.loads(ran.out)
    assert (ran.status, content["valid"]) == (1, False)
    assert {"line": 2, "rule": "a", "suggestion": "quota"}.items() <= content["problems"][0].items()


@pytest.mark.parametrize("command", [("check",), ("bounds",), ("diff", "rules.yaml")])
def test_unreadable_file_is_an_error(sluicegate: Run, rules: Path, command: tuple[str, ...]) -> None:
    """A file that is not there is exit status 2, not 1: nothing is known about its rules."""
    assert rules.exists()
    ran = sluicegate("rules", *command, "absent.yaml")
    assert ran == (2, "", "sluicegate: cannot read absent.yaml: No such file or directory\n")


def test_check_of_several_files(sluicegate: Run, rules: Path, tmp_path: Path) -> None:
    """Each file is reported by its name, also behind one that is invalid or cannot be read; the exit status is that of the worst."""
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("version: 1\nrules: [{name: a, qouta: 1/s}]\n")
    ran = sluicegate("rules", "check", str(wrong), str(rules))
    assert ran.status == 1
    said = [line.split(": ", 1)[0] for line in ran.out.splitlines()]
    assert (set(said[:-1]), said[-1]) == ({f"{wrong}:2"}, str(rules))
    ran = sluicegate("rules", "check", "absent.yaml", str(rules), str(wrong), "--json")
    assert (ran.status, ran.err) == (2, "sluicegate: cannot read absent.yaml: No such file or directory\n")
    assert [(each["file"], each["valid"]) for each in json.loads(ran.out)] == [(str(rules), True), (str(wrong), False)]
    assert sluicegate("rules", "check", str(rules), str(rules)).status == 0


def test_check_reads_standard_input(sluicegate: Run, rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` is standard input."""
    with rules.open("rb") as stream:
        saved = os.dup(0)
        os.dup2(stream.fileno(), 0)
        try:
            with monkeypatch.context() as patch, open(0, closefd=False) as stdin:
                patch.setattr("sys.stdin", stdin)
                assert sluicegate("rules", "check", "-").out.startswith("-: valid, 2 rule(s)")
        finally:
            os.dup2(saved, 0)
            os.close(saved)


def test_bounds_are_numbers_of_the_rules(sluicegate: Run, rules: Path) -> None:
    """``rules bounds`` says for each rule and tier the most it admits in a window: a full bucket and the refill of less than a minute."""
    rows = json.loads(sluicegate("rules", "bounds", "--json", str(rules)).out)
    assert [row["rule"] for row in rows] == ["login", "api", "api"]
    text = sluicegate("rules", "bounds", str(rules)).out
    assert "login" in text
    assert "9 in any 60 s" in text


def test_bounds_follow_the_settings_of_servers(sluicegate: Run, rules: Path, tmp_path: Path) -> None:
    """One configuration file serves a server and the report of what it may do wrong; a number out of range is told by its flag."""
    rules.write_text("version: 1\nrules: [{name: all, quota: 500/s}]\n")
    file = tmp_path / "settings.yaml"
    file.write_text("lease-horizon: 40ms\ndeny-cache: false\nnodes: 4\n")
    (row,) = json.loads(sluicegate("rules", "bounds", "--config", str(file), "--json", str(rules)).out)
    assert row["shared"]["refused_wrongly"] == 25
    assert (row["store_calls_per_s"], row["shared"]["trusted_s"]) == (400, 0)
    (row,) = json.loads(sluicegate("rules", "bounds", "--no-leases", "--lost-writes", "0", "--json", str(rules)).out)
    assert (row["shared"]["leased"], row["shared"]["lost_writes_extra"]) == (False, 0)
    refused = sluicegate("rules", "bounds", "--lease-ttl", "1ms", str(rules))
    assert refused.status == 2
    assert "--lease-ttl: must be within" in refused.err


@pytest.mark.parametrize(
    ("stretch", "told"), [("3s", "after 1 s at most, or 3 s where several"), ("0", "after 1 s at most. It")]
)
def test_bounds_tell_how_long_a_refusal_lasts(sluicegate: Run, rules: Path, stretch: str, told: str) -> None:
    """Also where several processes are hammered for one counter, if it is longer there."""
    text = sluicegate("rules", "bounds", "--deny-cache-stretch", stretch, str(rules)).out
    assert told in " ".join(text.split())


def test_bounds_tell_what_each_region_has(sluicegate: Run, rules: Path) -> None:
    """Of a limit that moves, the region's own, and the least and most it comes to; of a client's, its share, or all of it in each."""
    rules.write_text("version: 1\nrules: [{name: all, quota: 3000/s}, {name: api, per: [user], quota: 100/m}]\n")
    flags = ("--regions", "eu=1,us=1,ap=1", "--json", str(rules))
    shared, client = json.loads(sluicegate("rules", "bounds", *flags).out)
    assert shared["shared"]["regions"] == "ap 1,000 (800 to 1,400); eu 1,000 (800 to 1,400); us 1,000 (800 to 1,400)"
    assert client["shared"]["regions"] == "ap 33; eu 34; us 33"
    _, each = json.loads(sluicegate("rules", "bounds", "--region-clients", "each", *flags).out)
    assert each["shared"]["regions"] == "all of it in each region, so up to 300 for a client who uses all of them"
    text = sluicegate("rules", "bounds", "--regions", "eu=1", str(rules)).out
    assert "\n  regions        eu 3,000 " in text
    assert "--regions: want NAME=WEIGHT" in sluicegate("rules", "bounds", "--regions", "eu", str(rules)).err


def test_bounds_of_invalid_rules(sluicegate: Run, rules: Path) -> None:
    """Bounds of a file that is not valid are an error that lists its problems."""
    rules.write_text("version: 1\nrules: [{name: a, qouta: 1/s}]\n")
    ran = sluicegate("rules", "bounds", str(rules))
    assert ran.status == 2
    assert "did you mean 'quota'?" in ran.err


def test_diff_of_equal_meaning(sluicegate: Run, rules: Path) -> None:
    """Comments, layout and another way to write a number are no difference; exit status 0."""
    other = rules.with_name("other.yaml")
    other.write_text("# new\n" + rules.read_text().replace("5/minute", "5/1m"))
    assert sluicegate("rules", "diff", str(rules), str(other)) == (0, "no difference in meaning\n", "")


def test_diff_that_keeps_counters(sluicegate: Run, rules: Path) -> None:
    """A raised limit is shown with the old and the new number, and keeps counters; exit status 1."""
    other = rules.with_name("other.yaml")
    other.write_text(rules.read_text().replace("5/minute", "9/minute"))
    ran = sluicegate("rules", "diff", str(rules), str(other))
    assert (ran.status, ran.out) == (1, "~ login  (counters: kept)\n    quota 5/minute -> 9/minute\n")


def test_diff_as_json(sluicegate: Run, rules: Path) -> None:
    """``--json`` gives each change as an object."""
    other = rules.with_name("other.yaml")
    other.write_text(rules.read_text().replace("name: login", "name: sign-in"))
    ran = sluicegate("rules", "diff", "--json", str(rules), str(other))
    assert [(change["kind"], change["rule"], change["counters"]) for change in json.loads(ran.out)] == [
        ("added", "sign-in", "new"),
        ("removed", "login", "dropped"),
    ]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-1", "1e13", "1e308", "x", ""])
@pytest.mark.parametrize("name", ["--rps", "--clients", "--nodes"])
def test_bounds_of_an_impossible_load(sluicegate: Run, rules: Path, name: str, value: str) -> None:
    """A load that is no positive number within its range is bad usage, said in one line that names the flag."""
    ran = sluicegate("rules", "bounds", str(rules), f"{name}={value}")
    assert ran.status == 2
    assert name in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["--rps", "--clients", "--nodes"])
def test_bounds_of_the_largest_load(sluicegate: Run, rules: Path, name: str) -> None:
    """The largest load that may be asked for is computed."""
    assert sluicegate("rules", "bounds", str(rules), name, "1000000000000").status == 0


ENVOY = "domain: edge\ndescriptors: [{key: path, rate_limit: {unit: week, requests_per_unit: 5}}]\n"


def test_import_prints_rules_and_says_what_differs(sluicegate: Run, tmp_path: Path) -> None:
    """Rules on standard output, which ``check`` accepts; what is counted in another way on standard error."""
    there, here = tmp_path / "config.yaml", tmp_path / "imported.yaml"
    there.write_text(ENVOY)
    ran = sluicegate("rules", "import", "--from", "envoy-ratelimit", str(there))
    assert ran.status == 0
    assert "weeks begin on Monday here" in ran.err
    here.write_text(ran.out)
    assert sluicegate("rules", "check", str(here)).status == 0
    assert "denied_counts: true" not in ran.out
    assert (
        "denied_counts: true"
        in sluicegate("rules", "import", "--from", "envoy-ratelimit", "--denied-counts", str(there)).out
    )


def test_import_prints_nothing_where_something_cannot_be_said(sluicegate: Run, tmp_path: Path) -> None:
    """Exit status 1 and the field at fault; half of a configuration would mean something else."""
    there = tmp_path / "config.yaml"
    there.write_text(ENVOY.replace("unit: week", "unit: day, replaces: [{name: b}]"))
    ran = sluicegate("rules", "import", "--from", "envoy-ratelimit", str(there))
    assert (ran.status, ran.out) == (1, "")
    assert f"{there}:2: descriptors[1].rate_limit.replaces: cannot be imported" in ran.err


def test_import_of_what_is_not_there(sluicegate: Run, tmp_path: Path) -> None:
    """A file that cannot be read, and a limiter that is not known, are exit status 2."""
    assert sluicegate("rules", "import", "--from", "envoy-ratelimit", str(tmp_path / "no.yaml")).status == 2
    assert sluicegate("rules", "import", "--from", "other", str(tmp_path / "no.yaml")).status == 2
