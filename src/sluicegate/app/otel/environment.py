"""The variables ``OTEL_*`` that the SDK would pass over with a word in the log, or fail at: a wrong one is told at the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sluicegate.errors import ConfigurationError

__all__ = ["check_environment"]

_SAMPLERS: Final = ("always_on", "always_off", "traceidratio")
_WORDS: Final = {
    "OTEL_TRACES_EXPORTER": ("otlp", "none"),
    "OTEL_METRICS_EXPORTER": ("otlp", "none"),
    "OTEL_TRACES_SAMPLER": (*_SAMPLERS, *(f"parentbased_{name}" for name in _SAMPLERS)),
}
_COUNTS: Final = (
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_METRIC_EXPORT_TIMEOUT",
)


def check_environment(environ: Mapping[str, str]) -> None:
    """Raises ConfigurationError that names the variable and its value. One that is empty counts as not set."""
    for name, words in _WORDS.items():
        _check(environ, name, f"one of {', '.join(words)}", partial(_is_word, words))
    for name in _COUNTS:
        _check(environ, name, "a whole number above 0", lambda value: value.isdecimal() and int(value) > 0)
    if "traceidratio" in environ.get("OTEL_TRACES_SAMPLER", "").lower():
        _check(environ, "OTEL_TRACES_SAMPLER_ARG", "a number from 0 to 1", lambda value: 0 <= _number(value) <= 1)
    for prefix in ("OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_METRICS_"):
        _check(environ, f"{prefix}ENDPOINT", "a URL with http or https and a host", _is_url)
        _check(environ, f"{prefix}PROTOCOL", "http/protobuf, which is what is spoken", "http/protobuf".__eq__)
        _check(environ, f"{prefix}COMPRESSION", "gzip, deflate or none", ("gzip", "deflate", "none").__contains__)
        _check(environ, f"{prefix}TIMEOUT", "seconds above 0", lambda value: 0 < _number(value) < math.inf)
        for file in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
            _check(environ, prefix + file, "a file that there is", lambda value: Path(value).is_file())


def _check(environ: Mapping[str, str], name: str, wanted: str, is_good: Callable[[str], bool]) -> None:
    value = environ.get(name, "").strip()
    if value and not is_good(value):
        raise ConfigurationError(f"{name}: want {wanted}, got {value!r}")


def _is_word(words: tuple[str, ...], value: str) -> bool:
    return value.lower() in words


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


def _is_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
