"""From what a rules service tells to the rules a limiter decides by. Slow, and so done beside the loop."""

from __future__ import annotations

import threading
from pathlib import Path

from sluicegate.app.feed.patching import Read, read
from sluicegate.clock import Clock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.effective import effective
from sluicegate.rules.feed import Pause, RulesDocument, Snapshot
from sluicegate.rules.identity.config import IdentityConfig
from sluicegate.rules.identity.files import Signature, signature_if_there
from sluicegate.rules.model import RuleSet

__all__ = ["Maker"]

_Key = tuple[str, int, str]


class Maker:
    """Puts snapshots in service, one after another whatever thread asks.

    ``source`` names the service, for messages. ``files``: the directory that names of files in rules are relative to. ``changes_at_us``: wall time at which the
    rules of the last snapshot become others by themselves; None: never. ``pauses``: those that keep rules from applying now.
    """

    def __init__(self, limiter: Limiter, clock: Clock, node: str, source: str, files: Path) -> None:
        self.changes_at_us: int | None = None
        self.pauses: tuple[Pause, ...] = ()
        self._limiter = limiter
        self._clock = clock
        self._node = node
        self._source = source
        self._directory = files
        self._lock = threading.Lock()
        self._parsed: dict[_Key, Read] = {}
        self._last: Read | None = None
        self._files: tuple[Signature | None, ...] = ()

    def put(self, snapshot: Snapshot) -> None:
        """Decide by these rules from now on. Files that they name are read again where they have changed.

        Raises ConfigurationError (RulesInvalid with every problem) where they cannot be served; nothing has changed then.
        """
        with self._lock:
            self._put(snapshot)

    @property
    def digest(self) -> str:
        """Stands for what the limiter decides by."""
        return self._limiter.ruleset.digest

    def files_changed(self) -> bool:
        """Whether a file that the rules in service name is another than when rules were put in service last, or refused."""
        return self._signatures(self._limiter.ruleset) != self._files

    def _put(self, snapshot: Snapshot) -> None:
        assert snapshot.rules is not None, "without rules there is nothing to decide by"
        known, self._parsed = self._parsed, {}
        incarnation = snapshot.revisions.incarnation
        base = self._read(known, incarnation, snapshot.rules)
        rollout = snapshot.candidate
        trial = None if rollout is None else self._read(known, incarnation, rollout.rules)
        now_us = self._clock.now_us()
        made, changes_at_us = effective(base, trial, rollout, snapshot.pauses, self._node, now_us)
        before, self._files = self._files, self._signatures(made)
        # The limiter is asked, because it may have been given the rules of a file since.
        serving = self._limiter.ruleset
        if (made.version, made.digest) != (serving.version, serving.digest) or before != self._files:
            self._limiter.apply(made)
        self.changes_at_us = changes_at_us
        self.pauses = tuple(each for each in snapshot.pauses if each.until_us is None or now_us < each.until_us)

    def _read(self, known: dict[_Key, Read], incarnation: str, told: RulesDocument) -> RuleSet:
        key = (incarnation, told.version, told.digest)
        found = known.get(key)
        if found is None:
            found = read(told, f"{self._source} version {told.version}", self._last)
        self._parsed[key] = found
        if told.version:
            # Those on trial are version 0, and not what the next version is made from.
            self._last = found
        return found.ruleset

    def _signatures(self, ruleset: RuleSet) -> tuple[Signature | None, ...]:
        identity = ruleset.identity
        names = identity.files if isinstance(identity, IdentityConfig) else ()
        return tuple(signature_if_there(self._directory / name) for name in names)
