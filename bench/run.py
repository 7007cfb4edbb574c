"""Run every benchmark of this directory, one after the other; print one table and keep it.

    python bench/run.py [NAME ...]

`make bench` runs all; `make bench ARGS="counters rules"` some, which keeps nothing. Kept are ``results/<date>-<commit>.json`` with every
figure, ``results/latest.md`` to read, and the same table in docs/benchmarks.md, between its two marks, so that the page
cannot say anything else. Ends with 1 where a benchmark failed; a goal that is missed is told, not an error.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from _report import FIGURES_FILE, HEAD, Figure, table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results: written by bench/run.py -->", "<!-- end of results -->"
PACKAGES = (
    "sluicegate", "msgspec", "uvloop", "httptools", "limits", "throttled-py", "uvicorn",
    "starlette", "fastapi", "slowapi", "fastapi-limiter",
)  # fmt: skip


def machine() -> dict[str, str]:
    """What the numbers depend on: processor, system, versions, commit, and how busy the machine was."""
    names = [
        line.partition(":")[2].strip() for line in read("/proc/cpuinfo").splitlines() if line.startswith("model name")
    ]
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": run(["git", "describe", "--always", "--dirty"]) or "unknown",
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: version(name) for name in PACKAGES},
        "wrk": (run(["wrk", "-v"]).split("[")[0].strip() or "not installed"),
    }


def read(path: str) -> str:
    """A file's text; empty where there is none."""
    return Path(path).read_text() if Path(path).exists() else ""


def run(command: list[str]) -> str:
    """The first line a command prints; empty where there is no such command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    except FileNotFoundError:
        return ""
    return (done.stdout.splitlines() or [""])[0]


def measure(name: str) -> tuple[list[Figure], bool]:
    """Run one benchmark: its figures, and whether it ended well."""
    print(f"\n== {name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        begun_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, str(HERE / f"{name}.py")],
            env={**os.environ, FIGURES_FILE: str(file)},
            cwd=ROOT,
            check=False,
        )
        print(f"\n({time.monotonic() - begun_s:.0f} s)", flush=True)
        figures = [Figure(**each) for each in json.loads(file.read_text())] if file.exists() else []
    return figures, done.returncode == 0 and bool(figures)


def as_markdown(about: dict[str, str], results: dict[str, list[Figure]]) -> str:
    """The page of one run."""
    lines = [table([("machine", ""), *about.items()]), ""]
    for name, figures in results.items():
        lines += [f"### {name}", "", table([HEAD, *(figure.cells() for figure in figures)]), ""]
    return "\n".join(lines)


def keep(about: dict[str, str], results: dict[str, list[Figure]]) -> Path:
    """Write the results; returns the JSON file."""
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    document = {
        "machine": about,
        "results": {
            name: [{**figure._asdict(), "met": figure.met} for figure in figures] for name, figures in results.items()
        },
    }
    file = folder / f"{datetime.now(UTC):%Y-%m-%d}-{about['commit']}.json"
    file.write_text(json.dumps(document, indent=1) + "\n")
    text = as_markdown(about, results)
    (folder / "latest.md").write_text(f"# Latest results\n\nWritten by bench/run.py.\n\n{text}")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or END not in rest:
        raise SystemExit(f"{PAGE} has lost its marks {BEGIN!r} and {END!r}")
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")
    return file


def main(names: list[str]) -> int:
    """Run the named benchmarks (none: all), print the whole table, and keep it if it is whole."""
    known = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_") and path.stem != "run")
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; known are {', '.join(known)}", file=sys.stderr)
        return 2
    about = machine()
    print(table([("machine", ""), *about.items()]))
    results: dict[str, list[Figure]] = {}
    failed: list[str] = []
    for name in names or known:
        results[name], well = measure(name)
        if not well:
            failed.append(name)
    print("\n== all\n")
    print(table([HEAD, *(figure.cells() for figures in results.values() for figure in figures)]))
    if failed:
        print(f"\nfailed: {', '.join(failed)}; nothing is kept", file=sys.stderr)
        return 1
    if not names:
        print(f"\nkept in {keep(about, results).relative_to(ROOT)}, bench/results/latest.md and docs/benchmarks.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
