"""The document of the rules in service, made once for each rule set."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from sluicegate.app.ruleset import ruleset_document
from sluicegate.doors.headers import RateHeaders
from sluicegate.limiter.engine import Engine
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.base import PartialStore

__all__ = ["RulesetSource"]


class RulesetSource:
    """Calling it gives the document, the same object while the rules are the same. ``store``: the URL of the store."""

    def __init__(self, limiter: Limiter, headers: RateHeaders, store: str) -> None:
        self._limiter = limiter
        self._headers = headers
        given = parse_qs(urlsplit(store).query)
        # While counters move from another layout, those that a reader does not find may be where it does not look.
        packed = given.get("layout") == ["packed"]
        self._keys = "packed" if packed else "moving" if "moving_from" in given else given.get("keys", ["digest"])[0]
        self._partly = isinstance(limiter.store, PartialStore)
        self._made: tuple[Engine, bytes] | None = None

    def __call__(self) -> bytes:
        engine = self._limiter.engine
        made = self._made
        if made is None or made[0] is not engine:
            document = ruleset_document(engine, self._headers, keys=self._keys, partly=self._partly)
            made = self._made = (engine, document)
        return made[1]
