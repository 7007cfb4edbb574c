"""``rules check``, ``diff``, ``apply`` and ``export`` between files and a service."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

BASE = "version: 1\ntiers: {default: free, names: [free, paid]}\n"
LOGIN = "version: 1\nrules: [{name: login, match: {path: /login}, per: [ip], quota: 5/minute}]\n"
API = "version: 1\nrules: [{name: api, match: {path: /api/**}, per: [ip], quota: {free: 100/minute, paid: 1000/minute}}]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One set in three files."""
    made = tmp_path / "rules"
    made.mkdir()
    for name, text in (("00-base.yaml", BASE), ("10-login.yml", LOGIN), ("20-api.yaml", API)):
        (made / name).write_text(text)
    (made / "README.md").write_text("no rules")
    return made


@pytest.fixture(params=["server", "offline"])
def fresh(request: pytest.FixtureRequest, start_service: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs commands against a service without rules: its process, or its database."""
    if request.param == "offline":
        yield request.getfixturevalue("offline")
        return
    command = request.getfixturevalue("command")
    with start_service() as service:
        monkeypatch.setenv("SLUICEGATE_SERVER", service.address)
        monkeypatch.setenv("SLUICEGATE_TOKEN", service.token)
        yield command


@pytest.mark.slow
def test_a_directory_becomes_the_rules_once(fresh: Any, folder: Path) -> None:
    """Diff says 1 and dry run changes nothing; apply makes one version; the same again makes none, and diff says 0."""
    assert fresh("rules", "diff", str(folder)).status == 1
    tried = fresh("rules", "apply", str(folder), "--dry-run")
    assert (tried.status, tried.out.splitlines()[-1]) == (1, "would be version 1")
    assert fresh("versions", "list", "--json").out.strip() == "[]"
    done = fresh("rules", "apply", str(folder), "--reason", "größer")
    assert (done.status, done.out.splitlines()[-1]) == (0, "version 1 is in service")
    again = fresh("rules", "apply", str(folder))
    assert (again.status, again.out) == (0, "nothing to change: version 1 is the same\n")
    assert fresh("rules", "diff", str(folder)).status == 0
    assert fresh("rules", "apply", str(folder), "--dry-run").status == 0
    (version,) = json.loads(fresh("versions", "list", "--json").out)
    assert version["reason"] == "größer"
    assert [rule["name"] for rule in json.loads(fresh("rules", "list", "--json").out)] == ["login", "api"]


@pytest.mark.slow
def test_rules_not_in_the_files_stay_unless_pruned(fresh: Any, folder: Path) -> None:
    """What FILE does not name is kept behind it and said so; --prune removes it, for diff as for apply."""
    assert fresh("rules", "apply", str(folder)).status == 0
    (folder / "10-login.yml").unlink()
    kept = fresh("rules", "diff", str(folder))
    assert (kept.status, "login" in kept.err) == (0, True)
    applied = fresh("rules", "apply", str(folder))
    assert (applied.status, "kept, though not in the files: login" in applied.err) == (0, True)
    pruned = fresh("rules", "diff", str(folder), "--prune")
    assert (pruned.status, pruned.out.splitlines()[0]) == (1, "- login  (counters: dropped)")
    gone = fresh("rules", "apply", str(folder), "--prune", "--json")
    assert gone.status == 0
    assert [change["kind"] for change in json.loads(gone.out)["changes"]] == ["removed"]
    assert fresh("rules", "get", "login").status == 2


@pytest.mark.slow
def test_what_is_exported_applies_as_the_same(fresh: Any, folder: Path, tmp_path: Path) -> None:
    """An export is a valid rules file that changes nothing when applied, whole or of an earlier version."""
    assert fresh("rules", "apply", str(folder)).status == 0
    written = fresh("rules", "export", "--output", str(tmp_path / "out.yaml"))
    assert (written.status, written.out) == (0, "")
    assert fresh("rules", "check", str(tmp_path / "out.yaml")).status == 0
    assert fresh("rules", "apply", str(tmp_path / "out.yaml"), "--prune").out.startswith("nothing to change")
    assert fresh("rules", "set", "login", "quota=6/minute").status == 0
    assert "quota: 5/minute" in fresh("rules", "export", "--at", "1").out
    assert json.loads(fresh("rules", "export", "--json").out)["rules"][0]["quota"] == "6/minute"
    assert fresh("rules", "export", "--output", str(tmp_path / "no" / "out.yaml")).status == 2


@pytest.mark.slow
def test_managed_rules_are_guarded(fresh: Any, folder: Path) -> None:
    """Who manages the rules is named to whoever edits behind its back; the same name, or force, goes on."""
    assert fresh("rules", "apply", str(folder), "--managed-by", "git").status == 0
    refused = fresh("rules", "set", "login", "quota=6/minute")
    assert (refused.status, "managed by 'git'" in refused.err) == (2, True)
    assert fresh("rules", "set", "login", "quota=6/minute", "--force").status == 0
    assert fresh("rules", "diff", str(folder)).status == 1
    assert fresh("rules", "apply", str(folder), "--managed-by", "git").status == 0
    assert fresh("rules", "diff", str(folder)).status == 0


@pytest.mark.slow
def test_nobody_is_overwritten(fresh: Any, folder: Path) -> None:
    """A change made from an older state is refused, with the reason and what to look at."""
    assert fresh("rules", "apply", str(folder)).status == 0
    assert fresh("rules", "set", "login", "quota=6/minute", "--if-match", "r1").status == 0
    stale = fresh("rules", "set", "login", "quota=7/minute", "--if-match", "r1")
    assert stale.status == 2
    assert 'the revision is "r2" now' in stale.err
    assert "sluicegate rules diff" in stale.err
    assert fresh("rules", "delete", "login", "--if-match", "r1").status == 2
    assert fresh("rollback", "1", "--if-match", "r1").status == 2


def test_bad_files_are_told_with_their_lines(command: Any, folder: Path) -> None:
    """A fault in one file of a set, and a name that two files use, is told with file and line, before any service is asked."""
    (folder / "30-more.yaml").write_text(LOGIN.replace("quota: 5/minute", "quota: 5/minte"))
    checked = command("rules", "check", str(folder))
    assert checked.status == 1
    assert f"{folder}/30-more.yaml:2: rule 'login': name: another rule at {folder}/10-login.yml:2 has" in checked.out
    assert "did you mean 'minute'" in checked.out
    applied = command("rules", "apply", str(folder), "--server", "http://127.0.0.1:1", "--token", "none")
    assert (applied.status, "30-more.yaml:2" in applied.err) == (2, True)
    assert command("rules", "check", str(folder.parent / "rules" / "nothing")).status == 2


def test_an_empty_directory_is_an_error(command: Any, tmp_path: Path) -> None:
    """A directory without rule files, and a file named twice, are errors and no empty set."""
    (tmp_path / "none").mkdir()
    (tmp_path / "a.yaml").write_text(LOGIN)
    empty = command("rules", "check", str(tmp_path / "none"))
    assert (empty.status, "no file *.yaml" in empty.err) == (2, True)
    twice = command("rules", "apply", "a.yaml", "a.yaml", "--server", "http://127.0.0.1:1", "--token", "t")
    assert (twice.status, "named twice" in twice.err) == (2, True)


def test_two_sets_are_compared_without_a_service(command: Any, folder: Path, tmp_path: Path) -> None:
    """``rules diff OLD NEW`` compares a file with a directory, and the other way round."""
    (tmp_path / "one.yaml").write_text(BASE + LOGIN.removeprefix("version: 1\n"))
    assert command("rules", "diff", str(tmp_path / "one.yaml"), str(folder)).out.startswith("+ api")
    assert command("rules", "diff", str(folder), str(tmp_path / "one.yaml")).status == 1
    assert command("rules", "diff", str(folder), str(folder)).status == 0


@pytest.mark.slow
def test_apply_waits_for_nodes(remote: Any, service: Any, folder: Path, tmp_path: Path) -> None:
    """--wait ends when the last live node decides by the version, and says 1 where one does not in time."""
    made = remote("tokens", "create", "nodes", "--role", "node")
    headers = {"Authorization": f"Bearer {made.out.strip()}"}
    with httpx.Client(base_url=service.address, headers=headers, timeout=60) as node:

        def report(version: int) -> None:
            applied = {**node.get("/v1/feed/revisions").json(), "ruleset": version}
            told = {"node": "n1", "started_us": 1, "release": "x", "applied": applied, "interval_s": 600.0}
            assert node.post("/v1/feed/report", json=told).status_code == 200

        report(0)
        late = remote("rules", "apply", str(folder), "--wait", "--wait-timeout", "300ms")
        assert (late.status, "node n1: version 0, not 1" in late.out) == (1, True)

        def apply_soon() -> None:
            time.sleep(0.5)
            report(1)

        thread = threading.Thread(target=apply_soon)
        thread.start()
        waited = remote("rules", "apply", str(folder), "--wait", "--wait-timeout", "30s")
        thread.join()
        assert (waited.status, "node n1: version 1" in waited.out) == (0, True)


def test_the_pre_commit_hook(tmp_path: Path) -> None:
    """The hook's entry, run on the files of a commit as pre-commit runs it, lets good rules through and stops bad ones."""
    import yaml

    root = Path(__file__).resolve().parents[3]
    (hook,) = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text())
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(LOGIN)
    bad.write_text(LOGIN.replace("5/minute", "5/minte"))
    words = hook["entry"].split()
    assert words[0] == "sluicegate"
    assert hook["language"] == "python"

    def commit(*files: Path) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", *words]
        return subprocess.run([*program, *map(str, files)], capture_output=True, text=True, timeout=60, cwd=tmp_path)

    assert commit(good).returncode == 0
    stopped = commit(good, bad)
    assert (stopped.returncode, "bad.yaml:2" in stopped.stdout) == (1, True)


def test_the_git_hook_checks_what_is_committed(tmp_path: Path) -> None:
    """The plain hook refuses a commit whose staged rules are bad, though the file in the work tree is good by now."""
    root = Path(__file__).resolve().parents[3]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GIT_CONFIG_GLOBAL": os.devnull,
        **{f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )

    assert git("init", "-q").returncode == 0
    hook = tmp_path / ".git" / "hooks" / "pre-commit"
    hook.write_text((root / "integrations" / "pre-commit" / "pre-commit").read_text())
    hook.chmod(hook.stat().st_mode | stat.S_IXUSR)
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "a.yaml").write_text(LOGIN)
    git("add", "rules")
    assert git("commit", "-q", "-m", "good").returncode == 0
    (rules / "a.yaml").write_text(LOGIN.replace("5/minute", "5/minte"))
    git("add", "rules")
    (rules / "a.yaml").write_text(LOGIN)
    refused = git("commit", "-q", "-m", "bad")
    assert refused.returncode == 1
    assert "rules/a.yaml:2: rule 'login': quota: unknown unit 'minte'" in refused.stderr
