"""What is built is what runs: the wheel holds the package and its data, and says what it needs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The built wheel, opened."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    (built,) = target.glob("*.whl")
    return zipfile.ZipFile(built)


def test_wheel_holds_the_package_and_its_data(wheel: zipfile.ZipFile, root: Path) -> None:
    """Every file of the package is in the wheel, the embedded rules and ``py.typed`` too, and nothing from elsewhere."""
    there = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = root / "src"
    wanted = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and ".egg-info" not in str(path)
    }
    assert there == wanted
    assert {"sluicegate/py.typed", "sluicegate/app/defaults.yaml"} <= there


def test_wheel_names_what_it_needs(wheel: zipfile.ZipFile, root: Path) -> None:
    """The core has two dependencies; each extra of the project is one of the wheel."""
    (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    lines = wheel.read(name).decode().splitlines()
    required = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    assert sorted(line.split(">")[0].lower() for line in required if "extra ==" not in line) == ["msgspec", "pyyaml"]
    extras = {line.partition(": ")[2] for line in lines if line.startswith("Provides-Extra: ")}
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert extras == set(project["optional-dependencies"])


def test_extras_that_install_nothing_are_called_planned(root: Path) -> None:
    """An extra without dependencies is documented as planned, and one with dependencies is not."""
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = [line for line in (root / "docs" / "install.md").read_text().splitlines() if line.startswith("| `")]
    for name, dependencies in extras.items():
        (row,) = [line for line in rows if f"`{name}`" in line.split("|")[1]]
        assert ("planned: installs nothing" in row) == (not dependencies), name
