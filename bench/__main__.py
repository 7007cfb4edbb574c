"""Run every benchmark of this directory, one after the other, and keep what they print in bench/results/.

`make bench` runs all; `make bench ARGS="core matching"` some. Results are ratios taken in one run on one machine; the file names
machine, versions and commit, without which a number means nothing.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PACKAGES = ("sluicegate", "msgspec", "uvloop", "httptools", "limits", "throttled-py", "uvicorn")


def describe_machine() -> str:
    """Processor, system, versions and commit, a line each."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = f"{len(models)} x {models[0]}" if models else cpu
    commit = run(["git", "describe", "--always", "--dirty"])
    lines = [
        f"date      {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"commit    {commit}",
        f"machine   {cpu}",
        f"system    {platform.system()} {platform.release()}",
        f"python    {platform.python_version()}",
        *(f"{name:<13} {version(name)}" for name in PACKAGES),
    ]
    return "\n".join(lines)


def run(command: list[str]) -> str:
    """The first line a command prints; empty where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def main(names: list[str]) -> int:
    """Run the named benchmarks (none: all), print and keep their output."""
    known = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; known are {', '.join(known)}", file=sys.stderr)
        return 2
    text = [describe_machine()]
    print(text[0], flush=True)
    failed = 0
    for name in names or known:
        print(f"\n== {name}", flush=True)
        process = subprocess.Popen(
            [sys.executable, str(HERE / f"{name}.py")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
        failed += process.wait() != 0
        text.append(f"\n== {name}\n" + "\n".join(lines))
    if not names:
        results = HERE / "results"
        results.mkdir(exist_ok=True)
        stamp = f"{datetime.now(UTC):%Y-%m-%d-%H%M}"
        (results / f"{stamp}.txt").write_text("\n".join(text) + "\n")
        print(f"\nkept in bench/results/{stamp}.txt")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
