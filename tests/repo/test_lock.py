"""The lock files pin every package by hash, name no host, and cover what pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

FRAMEWORKS = ("django", "flask", "fastapi", "envoy-grpcio", "kafka", "clickhouse", "otel")
"""Extras that bring a framework, or the client of a system: whoever uses one has it already, and `make run` does not need it."""
LOCKS = ("server", "dev", "bench")


def locked(root: Path, name: str) -> dict[str, list[str]]:
    """Requirement line -> its hashes, of one lock file."""
    text = (root / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return {line.split(" --hash", 1)[0].strip(): re.findall(r"--hash=(\S+)", line) for line in lines}


def canonical(requirement: str) -> str:
    """The normal form of a package's name."""
    matched = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert matched is not None, requirement
    return re.sub(r"[-_.]+", "-", matched[0]).lower()


@pytest.mark.parametrize("name", LOCKS)
def test_every_requirement_is_pinned_by_hash(name: str, root: Path) -> None:
    """Each line is ``package==version`` with at least one SHA-256."""
    for requirement, hashes in locked(root, name).items():
        assert re.match(r"^[a-z0-9-]+==[^\s;]+( ;.*)?$", requirement), requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), requirement


@pytest.mark.parametrize("name", LOCKS)
def test_no_host_is_named(name: str, root: Path) -> None:
    """A lock holds no address and no local path: where packages come from is the installer's setting."""
    text = (root / "requirements" / f"{name}.txt").read_text()
    assert re.search(r"://|@ |^-|file:|^\s*/", text, re.MULTILINE) is None


def test_locks_agree(root: Path) -> None:
    """A package has the same version in every lock, so one environment can hold all of them."""
    largest = locked(root, "bench")
    for name in ("server", "dev"):
        assert set(locked(root, name)) <= set(largest), name


def test_locks_cover_the_project(root: Path) -> None:
    """The dependencies of the package and its extras are in the lock that ``make run`` installs; frameworks in that of ``make test``."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    frameworks = {canonical(one) for name in FRAMEWORKS for one in extras[name]}
    wanted = {canonical(one) for dependencies in (project["dependencies"], *extras.values()) for one in dependencies}
    assert wanted - frameworks - {"sluicegate"} - {canonical(line) for line in locked(root, "server")} == set()
    assert frameworks - {"sluicegate"} - {canonical(line) for line in locked(root, "dev")} == set()


@pytest.mark.parametrize("name", LOCKS)
def test_lock_covers_its_input(name: str, root: Path) -> None:
    """Every package named in a .in file is in the .txt file made from it."""
    lines = (root / "requirements" / f"{name}.in").read_text().splitlines()
    wanted = {canonical(line) for line in lines if line and not line.startswith(("#", "-"))}
    assert wanted - {canonical(line) for line in locked(root, name)} == set()
