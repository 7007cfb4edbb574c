"""Measured costs: what ``bench/calibrate.py`` writes and the model reads."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from sluicegate.bounds import SIM_CALIBRATION_BYTES_MAX, SIM_COST_US_MAX
from sluicegate.errors import ConfigurationError
from sluicegate.rules.identity.files import read_file

__all__ = ["Calibration", "load_calibration", "shipped_calibration"]

_TEXTS = frozenset({"machine", "date", "server", "python"})


@dataclass(frozen=True, slots=True)
class Calibration:
    """Costs of one machine, in microseconds of processor time except ``rtt_us``, which is time on the wall. All but it and the texts are > 0.

    ``local_check_us``: a check that is answered in the process. ``ask_us``: what an exact check costs the process beside that, riding with others.
    ``exact_call_us`` and ``exact_check_us``: what a call of n checks costs the server is the first plus n times the second, reading and replying
    included. ``lease_call_us`` and ``lease_item_us``: the same of a step of leases, per counter. ``rtt_us``: a message to the server and back, on
    loopback, with nothing to do there.
    """

    machine: str
    date: str
    server: str
    python: str
    local_check_us: float
    ask_us: float
    exact_call_us: float
    exact_check_us: float
    lease_call_us: float
    lease_item_us: float
    rtt_us: float


def shipped_calibration() -> Calibration:
    """The one that comes with the package."""
    text = (files("sluicegate.simulation") / "measured.json").read_text("utf-8")
    return _read(text, "the shipped calibration")


def load_calibration(path: Path) -> Calibration:
    """From a file of ``bench/calibrate.py``. ConfigurationError names the file and the field that is wrong."""
    raw = read_file(path, SIM_CALIBRATION_BYTES_MAX)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8: {error.reason}") from error
    return _read(text, str(path))


def _read(text: str, where: str) -> Calibration:
    try:
        given: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise ConfigurationError(f"{where} must be one JSON object")
    names = [field.name for field in fields(Calibration)]
    wrong = sorted(set(given) ^ set(names))
    if wrong:
        what = "unknown" if wrong[0] in given else "missing"
        raise ConfigurationError(f"{where}: {wrong[0]} is {what}")
    texts = {name: _text(name, given[name], where) for name in names if name in _TEXTS}
    costs = {name: _cost(name, given[name], where) for name in names if name not in _TEXTS}
    return Calibration(**texts, **costs)  # type: ignore[arg-type]  # each name has its type, as `_TEXTS` says


def _text(name: str, value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{where}: {name} must be text, got {value!r}")
    return value


def _cost(name: str, value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigurationError(f"{where}: {name} must be a number, got {value!r}")
    if not 0 < value <= SIM_COST_US_MAX:
        raise ConfigurationError(f"{where}: {name} must be above 0 and at most {SIM_COST_US_MAX}, got {value!r}")
    return float(value)
