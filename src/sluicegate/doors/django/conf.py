"""The setting ``SLUICEGATE``: which limiter, and how it speaks.

``LIMITER`` (a Limiter, or the dotted path of one or of a function that makes one), or ``RULES`` (path of a rules file) with ``STORE``
(its URL, default ``memory://``), ``NAMESPACE`` and ``WATCH`` (True: an edit of the file is put in service); neither: no rules, only the limits beside views. ``ENABLED`` (default True),
``HEADERS``, ``IDENTIFY``, ``ON_REFUSED``, ``RETRY_JITTER_S``, ``HELD_MAX``: as of the other doors; functions get the request and
may be given by dotted path.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django import conf as django_conf
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from sluicegate.bounds import WSGI_HELD_MAX
from sluicegate.doors.web.callables import is_async
from sluicegate.doors.web.declared import no_rules
from sluicegate.doors.web.door import Door
from sluicegate.doors.web.hold import Holder
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.limiter import Limiter

__all__ = ["SETTING", "Configured", "configured", "get_limiter", "reset"]

SETTING: Final = "SLUICEGATE"
"""The name of the setting."""

_NAMES: Final = (
    "LIMITER", "RULES", "STORE", "NAMESPACE", "WATCH", "ENABLED",
    "HEADERS", "IDENTIFY", "ON_REFUSED", "RETRY_JITTER_S", "HELD_MAX",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Configured:
    """What the settings mean. ``waits_for``: some function of them is a coroutine function, which only async requests can await."""

    door: Door
    holder: Holder
    on_refused: Callable[..., Any] | None
    waits_for: str | None


_lock = threading.Lock()
_current: list[Configured] = []
_made: dict[tuple[str, str, str, bool], Limiter] = {}
"""Limiters made from files, so that a test that overrides another setting keeps the counters it has."""


def configured() -> Configured:
    """What the settings mean now; raises ConfigurationError naming the entry at fault."""
    try:
        return _current[0]
    except IndexError:
        pass
    with _lock:
        if not _current:
            _current.append(_configure(getattr(django_conf.settings, SETTING, {})))
        return _current[0]


def get_limiter() -> Limiter:
    """The limiter of the settings in force."""
    return configured().door.limiter


def reset() -> None:
    """Forget every counter, for tests; raises ConfigurationError for a store that other processes share."""
    configured().door.clear()


def _configure(given: Any) -> Configured:
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{SETTING}: want a dict, got {type(given).__name__}")
    for name in given:
        if name not in _NAMES:
            raise ConfigurationError(f"{SETTING}: unknown entry {name!r}; known are {', '.join(_NAMES)}")
    limiter = _limiter(given)
    limiter.enabled = _switch(given, "ENABLED", default=True)
    identify = _function(given, "IDENTIFY")
    on_refused = _function(given, "ON_REFUSED")
    door = Door(
        limiter,
        headers=given.get("HEADERS", "x-ratelimit"),
        identify=identify,
        retry_jitter_s=given.get("RETRY_JITTER_S", 0),
        awaits=True,
    )
    waiting = [name for name, function in (("IDENTIFY", identify), ("ON_REFUSED", on_refused)) if is_async(function)]
    return Configured(door, Holder(given.get("HELD_MAX", WSGI_HELD_MAX)), on_refused, waiting[0] if waiting else None)


def _limiter(given: Mapping[str, Any]) -> Limiter:
    limiter = given.get("LIMITER")
    if limiter is not None:
        if not given.keys().isdisjoint(("RULES", "STORE", "WATCH")):
            raise ConfigurationError(f"{SETTING}: LIMITER has its rules and store; leave RULES, STORE and WATCH out")
        if isinstance(limiter, str):
            limiter = _imported("LIMITER", limiter)
        if not isinstance(limiter, Limiter) and callable(limiter):
            limiter = limiter()
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(f"{SETTING}: LIMITER: want a Limiter, got {type(limiter).__name__}")
        return limiter
    rules, store = str(given.get("RULES") or ""), str(given.get("STORE", "memory://"))
    namespace = str(given.get("NAMESPACE", "default"))
    watch = _switch(given, "WATCH", default=False)
    key = (rules, store, namespace, watch)
    if key not in _made:
        if rules:
            _made[key] = Limiter.from_file(rules, store, namespace=namespace, watch=watch)
        else:
            _made[key] = no_rules(store, namespace=namespace)
    return _made[key]


def _function(given: Mapping[str, Any], name: str) -> Callable[..., Any] | None:
    function = given.get(name)
    if isinstance(function, str):
        function = _imported(name, function)
    if function is not None and not callable(function):
        raise ConfigurationError(f"{SETTING}: {name}: want a function or its dotted path, got {function!r:.64}")
    return function


def _imported(name: str, dotted: str) -> Any:
    try:
        return import_string(dotted)
    except ImportError as error:
        raise ConfigurationError(f"{SETTING}: {name}: {error}") from error


def _switch(given: Mapping[str, Any], name: str, *, default: bool) -> bool:
    found = given.get(name, default)
    if not isinstance(found, bool):
        raise ConfigurationError(f"{SETTING}: {name}: want True or False, got {found!r:.64}")
    return found


def _forget(*, setting: str, **_: Any) -> None:
    if setting == SETTING:
        with _lock:
            _current.clear()


setting_changed.connect(_forget, dispatch_uid="sluicegate.doors.django")
