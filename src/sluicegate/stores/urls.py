"""From a store's URL to a store: the one place that knows which schemes exist."""

from __future__ import annotations

from difflib import get_close_matches
from urllib.parse import parse_qsl, urlsplit

from sluicegate.bounds import MEMORY_COUNTERS_MAX
from sluicegate.clock import Clock
from sluicegate.errors import ConfigurationError
from sluicegate.stores.base import Store
from sluicegate.stores.memory import MemoryStore

__all__ = ["open_store"]

_REDIS = frozenset(
    (
        "redis", "rediss", "redis+unix",
        "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel",
    )
)  # fmt: skip
"""The same with ``valkey`` in the place of ``redis`` are known too."""

_EMBEDDED = "embedded"
_KNOWN = (
    "memory://, embedded://, redis://, rediss://, redis+unix://, redis+cluster://, rediss+cluster://, redis+sentinel://, "
    "rediss+sentinel://, or valkey in the place of redis"
)


def open_store(url: str, clock: Clock, *, warm: bool = True, counted: bool = True) -> Store:
    """The store that ``url`` names.

    ``memory://`` keeps counters in this process; ``memory://?max_counters=N`` bounds them. ``redis://``, ``rediss://``,
    ``redis+unix://``, ``redis+cluster://`` and ``redis+sentinel://`` share them (``RedisSettings.from_url`` says what such a URL
    may hold); the store is tried for up to a second, and one that is absent is no error here: every call tries again. ``warm`` False: nothing is tried yet, which is
    for callers that ``awarm`` it. ``counted`` False: a process that admits nobody, and is not counted among those that share the limits. ``clock`` dates the counters of a store that has no time of its own. Raises
    ConfigurationError for anything else, MissingExtra where the extra ``redis`` is not installed; credentials in a URL are
    never part of a message.
    """
    scheme = url.partition("://")[0].lower()
    if scheme.replace("valkey", "redis", 1) in _REDIS:
        return _open_redis(url, clock, warm=warm, counted=counted)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"store: not a URL ({error}); want {_KNOWN}") from None
    if parts.scheme == _EMBEDDED:
        raise ConfigurationError("store: embedded:// is started by a server (up, serve, gateway), and only there")
    if parts.scheme != "memory":
        raise ConfigurationError(f"store: {_no_scheme(parts.scheme)}; want {_KNOWN}")
    if parts.netloc or parts.path.strip("/") or parts.fragment:
        raise ConfigurationError("store: memory:// takes no host, path or fragment, only ?max_counters=N")
    return MemoryStore(clock, max_counters=_max_counters(parts.query))


def _no_scheme(scheme: str) -> str:
    if not scheme:
        return "a URL without a scheme"
    known = ["memory", _EMBEDDED, *sorted(_REDIS), *sorted(name.replace("redis", "valkey", 1) for name in _REDIS)]
    near = get_close_matches(scheme, known, n=1)
    return f"no such scheme {scheme!r}" + (f" (did you mean {near[0]}://?)" if near else "")


def _open_redis(url: str, clock: Clock, *, warm: bool, counted: bool) -> Store:
    from sluicegate.stores.redis import RedisStore

    store = RedisStore(url, clock=clock, counted=counted)
    if warm:
        store.warm()
    return store


def _max_counters(query: str) -> int:
    max_counters = None
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "max_counters":
            raise ConfigurationError(f"store: memory:// has no parameter {name!r}, only max_counters")
        if max_counters is not None:
            raise ConfigurationError("store: max_counters is given twice")
        if not (value.isascii() and value.isdecimal()):
            raise ConfigurationError(f"store: max_counters: want a whole number, got {value!r}")
        max_counters = int(value[:20])
    return MEMORY_COUNTERS_MAX if max_counters is None else max_counters
