"""What the checks of the repository itself share."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKIPPED_DIRECTORIES = {"__pycache__", "node_modules", "dist", "build"}


def files_below(directory: Path) -> list[Path]:
    """Every file of the repository below ``directory``: no caches, no virtual environment, no version control."""
    found = []
    for entry in sorted(directory.iterdir()):
        if entry.is_dir():
            hidden = entry.name.startswith(".") and entry.name != ".ci"
            if not hidden and entry.name not in SKIPPED_DIRECTORIES and not entry.name.endswith(".egg-info"):
                found += files_below(entry)
        elif entry.suffix not in (".pyc", ".tmp", ".gz"):
            found.append(entry)
    return found


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def repository_files() -> list[Path]:
    """Every file a reader of the repository sees."""
    return files_below(ROOT)


@pytest.fixture(scope="session")
def package_files() -> list[Path]:
    """Every module of the package."""
    return [path for path in files_below(ROOT / "src" / "sluicegate") if path.suffix == ".py"]
