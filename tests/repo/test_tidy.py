"""The repository keeps its own rules: where time is read, what must not be written, how large things may grow."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import sluicegate

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500

# Tests that talk to real processes and sockets may wait in real time; the others move a ManualClock.
WAITING_TESTS = {
    "analytics",
    "app",
    "chaos_leases",
    "cli",
    "doors",
    "examples",
    "faults",
    "gateway",
    "integrations",
    "plugins",
    "replay",
}
WAITING_FILES = {
    "tests/stores/near/leases/test_keeper.py",
    "tests/stores/near/leases/test_real.py",
    "tests/stores/near/refused.py",
    "tests/stores/near/test_fleet.py",
    "tests/stores/regional/test_three_regions.py",
}


def imported_names(tree: ast.AST) -> set[str]:
    """Top-level names of the modules a file imports."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


def test_only_clock_reads_time(package_files: list[Path]) -> None:
    """No module but clock.py imports ``time`` or asks ``datetime`` what time it is."""
    offenders = []
    for path in package_files:
        text = path.read_text()
        if path.name != "clock.py" and "time" in imported_names(ast.parse(text)):
            offenders.append(f"{path}: imports time")
        if re.search(r"\bdatetime\.(now|utcnow|today)\(|\bdate\.today\(", text):
            offenders.append(f"{path}: reads the clock through datetime")
    assert offenders == []


def test_no_module_level_random(package_files: list[Path]) -> None:
    """Randomness comes in as a seeded ``Random``; the functions of the module ``random`` share hidden state."""
    offenders = []
    for path in package_files:
        tree = ast.parse(path.read_text())
        imported = any(
            isinstance(node, ast.Import) and any(alias.name == "random" for alias in node.names)
            for node in ast.walk(tree)
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "random":
                offenders += [f"{path}:{node.lineno}" for alias in node.names if alias.name != "Random"]
            if (
                imported
                and isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "random"
                and node.attr != "Random"
            ):
                offenders.append(f"{path}:{node.lineno}")
    assert offenders == []


def test_unit_tests_do_not_sleep(root: Path, repository_files: list[Path]) -> None:
    """A test that is not about a real process or socket never waits for real time."""
    offenders = []
    for path in repository_files:
        relative = path.relative_to(root)
        if relative.parts[0] != "tests" or path.suffix != ".py":
            continue
        waits = relative.parts[1] in WAITING_TESTS or relative.parts[1:3] == ("stores", "redis")
        if not waits and relative.as_posix() not in WAITING_FILES:
            offenders += [
                f"{relative}:{number}"
                for number, line in enumerate(path.read_text().splitlines(), 1)
                if re.search(r"\btime\.sleep\(", line)
            ]
    assert offenders == []


def test_nothing_is_left_for_later(root: Path, repository_files: list[Path]) -> None:
    """No marker of unfinished work stands in code, tests or documents."""
    marker = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    assert lines_with(marker, root, repository_files) == []


def test_nothing_names_a_machine_or_a_registry(root: Path, repository_files: list[Path]) -> None:
    """No path of somebody's machine and no host of a package registry is written anywhere."""
    home = "|".join(["/ho" + "me/", "/ro" + "ot/", "/Us" + "ers/[a-z]+/", "/wo" + "rk/", "/opt/wh" + "eels"])
    hosts = "|".join([r"py" + r"pi\.org", r"python" + r"hosted", "--(extra-)?index" + "-url", "--find" + "-links"])
    assert lines_with(re.compile(rf"(?<![\w.])(?:{home})|{hosts}"), root, repository_files) == []


def lines_with(pattern: re.Pattern[str], root: Path, files: list[Path]) -> list[str]:
    """``path:line: text`` of every line the pattern is found in."""
    found = []
    for path in files:
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()[:100]}")
    return found


def test_no_group_is_possessive() -> None:
    """No pattern repeats a group possessively: CPython before 3.11.5 gives up such a group's last round wrongly.

    Debian 12 has 3.11.2, where ``(?:/[a-z]++)*+`` matches texts it must not match. Repeating a character class
    possessively (``[a-z]++``) is sound everywhere.
    """
    in_class = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
    offenders, seen = [], 0
    for _, name, _ in pkgutil.walk_packages(sluicegate.__path__, "sluicegate."):
        module = importlib.import_module(name) if not name.endswith("__main__") else None
        for value in vars(module).values() if module is not None else ():
            if isinstance(value, re.Pattern):
                seen += 1
                text = value.pattern if isinstance(value.pattern, str) else value.pattern.decode("latin-1")
                if re.search(r"\)(?:[*+?]|\{[^}]*\})\+|\(\?>", in_class.sub("C", text)):
                    offenders.append(f"{name}: {text}")
    assert seen > 20
    assert offenders == []


def test_every_module_is_used(root: Path, package_files: list[Path]) -> None:
    """No module is dead: each is imported by another, is an entry point, or is public by its documentation."""
    # The last one is started by its name: importing it would need what its extra installs.
    entry_points = {"sluicegate", "sluicegate.cli", "sluicegate.__main__", "sluicegate.app.control.child"}
    source = root / "src"
    trees = {path: ast.parse(path.read_text()) for path in package_files}
    used: set[str] = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                used.add(node.module)
                used |= {f"{node.module}.{alias.name}" for alias in node.names}
    documents = (
        "\n".join(path.read_text() for path in (root / "docs").rglob("*.md")) if (root / "docs").exists() else ""
    )
    dead = []
    for path in package_files:
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        is_package_of_used = any(other.startswith(f"{name}.") for other in used)
        if name not in used | entry_points and not is_package_of_used and name not in documents:
            dead.append(name)
    assert dead == []


def test_sizes_only_shrink(root: Path, repository_files: list[Path]) -> None:
    """No function of the package is longer than 70 lines, and no Python file longer than 500."""
    too_long = []
    for path in repository_files:
        if path.suffix != ".py":
            continue
        text = path.read_text()
        relative = path.relative_to(root)
        if (count := text.count("\n")) > FILE_LINES_MAX:
            too_long.append(f"{relative}: {count} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    too_long.append(f"{relative}:{node.lineno}: {node.name} has {length} lines")
    assert too_long == []


@pytest.mark.parametrize("line", ["assert" + " True", "pytest.skip" + "()", "NotImplemented" + "Error"])
def test_nothing_is_pretended(line: str, root: Path, repository_files: list[Path]) -> None:
    """No test passes by doing nothing, and no function stands where its code should be."""
    python = [path for path in repository_files if path.suffix == ".py"]
    assert lines_with(re.compile(re.escape(line) + r"\s*$"), root, python) == []
