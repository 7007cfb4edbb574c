"""The documentation is complete, its links lead somewhere, and what it shows works as shown."""

from __future__ import annotations

import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import sluicegate
from sluicegate.cli.root import root as command_root
from sluicegate.doors.gateway.settings import Settings as GatewaySettings
from sluicegate.doors.http.settings import HttpSettings
from sluicegate.errors import SluicegateError
from sluicegate.rules.load import check_rules

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
OWN_PROCESS = {"python", "migrate"}
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: where its first line stands, its language and its text."""

    line: int
    language: str
    text: str


def name_of(path: Path) -> str:
    """The page's path in the repository."""
    return str(path.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page."""
    text = page.read_text()
    return [Block(text.count("\n", 0, m.start(2)) + 1, m[1], m[2]) for m in FENCE.finditer(text)]


def commands(group: click.Group, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that call it."""
    for name, command in sorted(group.commands.items()):
        yield (*names, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*names, name))


@pytest.fixture(scope="module")
def documentation() -> str:
    """All that is written in docs/."""
    return "\n".join(page.read_text() for page in PAGES if "docs" in page.parts)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    """A link to a file of the repository, and to a heading in it, has something at its end."""
    prose = FENCE.sub("", page.read_text())
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, heading = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        if not there.exists() or (heading and there.suffix == ".md" and heading not in headings(there)):
            broken.append(target)
    assert broken == []


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language == "python" for b in blocks(page))], ids=name_of
)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of a page runs from top to bottom in one namespace."""
    if page.parent.name in OWN_PROCESS:
        return run_in_its_own_process(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        if block.language == "python":
            # Blank lines in front, so that a traceback shows the line of the page.
            code = compile("\n" * (block.line - 1) + block.text, name_of(page), "exec")
            exec(code, namespace)
    return None


def run_in_its_own_process(page: Path, folder: Path) -> None:
    """Pages about frameworks: Django can be configured only once, and other limiters patch what they limit."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python":
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    program = folder / "page.py"
    program.write_text("\n".join(lines) + "\n")
    done = subprocess.run([sys.executable, str(program)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{name_of(page)} (line numbers are those of the page):\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_rule_files_shown_are_valid(page: Path) -> None:
    """Every whole rule file a page shows (it begins with ``version: 1``) passes ``rules check``."""
    for block in blocks(page):
        if block.language == "yaml" and re.match(r"(#[^\n]*\n|\n)*version: 1\b", block.text):
            ruleset, problems = check_rules(block.text, f"{name_of(page)}:{block.line}")
            assert ruleset is not None, "\n".join(map(str, problems))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_command_lines_shown_are_understood(page: Path) -> None:
    """Every ``$ sluicegate …`` line names a command and flags that exist."""
    for block in blocks(page):
        for line in block.text.replace("\\\n", " ").splitlines():
            if block.language == "console" and line.startswith("$ "):
                understood(line.removeprefix("$ "))


def understood(line: str) -> None:
    """Parse the sluicegate commands of a shell line as the program would, without running them."""
    words = shlex.split(line, comments=True)
    starts = [0, *(i + 1 for i, word in enumerate(words) if word in ("|", "&", "&&", "||", ";", "do"))]
    for start, end in zip(starts, [*starts[1:], len(words) + 1], strict=True):
        part = words[start : end - 1]
        while part and re.match(r"[A-Z_]+=", part[0]):
            part = part[1:]
        if not part or part[0] != "sluicegate":
            continue
        redirections = [i for i, word in enumerate(part) if re.match(r"\d?[<>]", word)]
        arguments = part[1 : redirections[0]] if redirections else part[1:]
        context = click.Context(command_root, info_name="sluicegate")
        group: click.Command = command_root
        while isinstance(group, click.Group) and arguments and not arguments[0].startswith("-"):
            name, command, arguments = group.resolve_command(context, arguments)
            assert command is not None
            context = click.Context(command, parent=context, info_name=name)
            group = command
        if not {"--help", "-h", "--version"} & set(arguments):
            group.parse_args(context, list(arguments))


@pytest.mark.parametrize(
    ("words", "command"),
    list(commands(command_root)),
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_every_command_and_flag_is_documented(
    words: tuple[str, ...], command: click.Command, documentation: str
) -> None:
    """Each command is named with its words, each flag by its long form, and each has a help text."""
    assert f"sluicegate {' '.join(words)}" in documentation
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            long = max(parameter.opts, key=len)
            assert re.search(rf"{re.escape(long)}\b", documentation), long


def test_every_error_is_documented(documentation: str) -> None:
    """Each exception class of the package is explained."""
    for _, name, _ in pkgutil.walk_packages(sluicegate.__path__, "sluicegate."):
        if not name.endswith("__main__"):
            importlib.import_module(name)
    classes = [SluicegateError]
    for cls in classes:
        classes += cls.__subclasses__()
    public = {
        cls.__name__ for cls in classes if cls.__module__.startswith("sluicegate.") and not cls.__name__.startswith("_")
    }
    assert sorted(name for name in public if f"`{name}`" not in documentation) == []


def test_every_setting_of_a_door_has_a_flag() -> None:
    """What an operator can set in code can be set on the command line."""
    flags = {p.name for _, command in commands(command_root) for p in command.params if p.name is not None}
    unset = [f.name for f in fields(GatewaySettings) if f.name.removesuffix("_s") not in flags]
    unset += [
        f.name for f in fields(HttpSettings) if f"api_{f.name.removeprefix('api_').removesuffix('_s')}" not in flags
    ]
    # How late a timeout may be is not a choice anybody needs.
    assert [name for name in unset if name != "sweep_s"] == []


def test_bounds_page_is_current() -> None:
    """docs/bounds.md is what scripts/bounds_page makes of bounds.py."""
    program = (ROOT / "scripts" / "bounds_page").read_text()
    namespace: dict[str, object] = {"__name__": "bounds_page", "__file__": str(ROOT / "scripts" / "bounds_page")}
    exec(compile(program, "scripts/bounds_page", "exec"), namespace)
    page = namespace["page"]
    assert callable(page)
    assert (ROOT / "docs" / "bounds.md").read_text() == page(), "run scripts/bounds_page"
