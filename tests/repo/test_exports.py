"""What a module offers is listed, sorted and real."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import sluicegate

FRAMEWORKS = ("flask", "django", "fastapi", "starlette", "rest_framework", "werkzeug")
MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(sluicegate.__path__, "sluicegate.")
    if not name.startswith("sluicegate.__main__")
)


def natural_key(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each by name: the order ruff sorts ``__all__`` in."""
    if name.isupper():
        return (0, name)
    return (1, name) if name[0].isupper() else (2, name)


@pytest.mark.parametrize("name", ["sluicegate", *MODULES])
def test_all_is_real_and_sorted(name: str) -> None:
    """Each name in ``__all__`` exists, none is listed twice, and the list is sorted."""
    module = importlib.import_module(name)
    exported: list[str] = list(getattr(module, "__all__", []))
    assert [item for item in exported if not hasattr(module, item)] == []
    assert exported == sorted(set(exported), key=natural_key)


def test_all_is_complete(package_files: list[Path]) -> None:
    """A module that defines public names lists every one of them in ``__all__``."""
    missing = []
    for path in package_files:
        tree = ast.parse(path.read_text())
        defined = {
            node.name
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
        }
        listed: set[str] = set()
        for node in tree.body:
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                listed = set(ast.literal_eval(node.value))  # type: ignore[attr-defined]
        missing += [f"{path.name}: {name}" for name in sorted(defined - listed)]
    assert missing == []


def test_the_library_needs_no_extra() -> None:
    """``import sluicegate`` loads none of the optional dependencies."""
    extras = ("uvloop", "httptools", "prometheus_client", "click", "rich", "jwt", "redis", "hiredis", *FRAMEWORKS)
    program = f"import sys, sluicegate; print([name for name in {extras!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("door", ["asgi", "wsgi"])
def test_asgi_and_wsgi_need_no_framework(door: str) -> None:
    """These two doors serve any application, so they load no framework."""
    program = f"import sys, sluicegate.doors.{door}; print([name for name in {FRAMEWORKS!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
