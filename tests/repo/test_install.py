"""scripts/install, with a pip that only writes down what it is told."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PYTHON = """\
#!/bin/sh
if [ "$1" = -m ]; then echo "$*" >> pip.log; fi
if [ "$*" != "${*%--editable .}" ]; then echo '{"dir_info": {"editable": true}, "url": "file:///x"}' > direct_url; fi
"""


@pytest.fixture
def clone(tmp_path: Path, root: Path) -> Path:
    """A clone with a virtual environment, into which nothing was installed yet."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(root / "scripts" / "install", tmp_path / "scripts" / "install")
    (tmp_path / "requirements").mkdir()
    for name in ("server", "dev", "bench"):
        (tmp_path / "requirements" / f"{name}.txt").write_text(name)
    (tmp_path / "pyproject.toml").touch()
    installed = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages" / "sluicegate-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "direct_url.json").symlink_to(tmp_path / "direct_url")
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir()
    for name in ("python", "pip"):
        (programs / name).write_text(PYTHON)
        (programs / name).chmod(0o755)
    return tmp_path


def installs(clone: Path, wanted: str) -> list[str]:
    """What pip was told by one call of the script."""
    log = clone / "pip.log"
    log.unlink(missing_ok=True)
    subprocess.run([clone / "scripts" / "install", wanted], check=True, capture_output=True)
    return log.read_text().splitlines() if log.exists() else []


def test_once(clone: Path) -> None:
    """What the lock names and the package are installed once; a set within an installed one costs nothing."""
    first = installs(clone, "dev")
    assert len(first) == 2
    assert "--require-hashes -r requirements/dev.txt" in first[0]
    assert first[1].endswith("--editable .")
    assert (installs(clone, "dev"), installs(clone, "server")) == ([], [])
    (clone / "requirements" / "dev.txt").write_text("changed")
    assert len(installs(clone, "dev")) == 2


@pytest.mark.parametrize("record", ['{"dir_info": {}, "url": "file:///x"}', '{"dir_info": {"editable": false}}', None])
def test_a_copy_is_replaced(clone: Path, record: str | None) -> None:
    """After ``pip install .`` put a copy in place of the editable package, or it was removed, the stamp is not believed."""
    installs(clone, "server")
    if record is None:
        (clone / "direct_url").unlink()
    else:
        (clone / "direct_url").write_text(record)
    assert len(installs(clone, "server")) == 2
    assert installs(clone, "server") == []
