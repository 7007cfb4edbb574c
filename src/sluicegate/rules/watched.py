"""The rule file as it is on disk, watched: an accepted edit is live in less than a second, a bad one changes nothing.

The file is polled, not subscribed to. A poll of its status costs a few microseconds and sees every way a file changes: written
in place, replaced by ``mv``, or reached through a symbolic link that is swapped (as Kubernetes does with a ConfigMap, where
the link that changes is the directory's). Notifications of the kernel follow one inode and miss two of the three.

A change is taken up when two polls in a row saw the same content, so a file caught in the middle of being written is read again
rather than believed: half a rule file can be a valid one with fewer rules. A writer that pauses longer than that should
write beside the file and ``mv`` it over.

Files that the rules name (known keys, key sets) are watched with them: a change of one is a change of the rules.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sluicegate.bounds import JWKS_BYTES_MAX, KEYS_FILE_BYTES_MAX, RULES_BYTES_MAX
from sluicegate.clock import US_PER_S, Clock
from sluicegate.errors import ConfigurationError
from sluicegate.rules.identity.config import IdentityConfig
from sluicegate.rules.identity.files import Signature, open_regular, signature_if_there, signature_of
from sluicegate.rules.load import check_rules, load_rules
from sluicegate.rules.model import RuleSet
from sluicegate.rules.problems import Problem, RulesInvalid

__all__ = ["POLL_INTERVAL_S", "RulesFile", "RulesState", "check_file"]

POLL_INTERVAL_S = 0.2
"""Seconds between polls. An edit is live after at most three of them and the time it takes to compile."""

_SETTLED_US = 2 * US_PER_S
# Within one tick of the file system's clock a file can change twice with the same status. Until a change is this old the
# content is compared as well.

_GONE = b"gone"
_SIDE_FILE_BYTES_MAX = max(KEYS_FILE_BYTES_MAX, JWKS_BYTES_MAX)


@dataclass(slots=True)
class RulesState:
    """What is to be told of the rules in service; the numbers only grow.

    ``version`` counts accepted contents from 1, ``digest`` stands for their meaning. ``error`` is None, or why the file as it is
    now is not in service. ``loaded_us`` is the wall time of the last acceptance.
    """

    version: int = 0
    digest: str = ""
    loaded_us: int = 0
    error: str | None = None
    accepted: int = 0
    rejected: int = 0


class RulesFile:
    """One watched file. ``poll`` is called every ``POLL_INTERVAL_S`` from one thread at a time.

    ``kept``: where the content in service is kept, with its version, for processes that serve the same file and are started while
    it is bad; None: nowhere. ``rules_needed``: a file without rules is a bad one, as for a server, which would limit nothing.
    """

    def __init__(self, path: Path, clock: Clock, kept: Path | None = None, *, rules_needed: bool = True) -> None:
        self.path = path
        self._kept = kept
        self._rules_needed = rules_needed
        self.state = RulesState()
        self._clock = clock
        self._side_files: tuple[Path, ...] = ()
        self._signatures: tuple[Signature | None, ...] = ()
        self._pending: bytes | None = None
        """Digest of changed content that one poll has seen and the next must confirm."""
        self._accepted = b""
        self._judged = b""
        """Digest of the content last accepted or rejected."""

    def load(self) -> RuleSet:
        """Read the file for the first time; raises ConfigurationError (RulesInvalid with every problem of the rules).

        Where the file is bad and content is kept, that is loaded, and ``state.error`` says what is wrong with the file.
        """
        version, kept = self._recall()
        try:
            content = _read(self.path)
            ruleset = load_rules(content, str(self.path), version=version if content == kept else version + 1)
            self._require_rules(ruleset)
        except ConfigurationError as error:
            if kept is None:
                raise
            ruleset = load_rules(kept, str(self.path), version=version)
            self._accept(ruleset, kept)
            self._reject(
                self._judged, "\n".join(map(str, error.problems)) if isinstance(error, RulesInvalid) else str(error)
            )
            return ruleset
        self._accept(ruleset, content)
        return ruleset

    def poll(self, apply: Callable[[RuleSet], None]) -> bool:
        """Look at the file once; give rules that are new and good to ``apply``. True where ``state`` changed.

        ``apply`` may refuse by raising ConfigurationError; the rules before it then stay in service, as with any bad file.
        """
        try:
            content = self._changed_content()
        except ConfigurationError as error:
            return self._unreadable(str(error))
        if content is None:
            return False
        judged = self._digest(content)
        if judged == self._accepted:
            # The good content is back after a bad edit; it never left service.
            self._judged = judged
            healed, self.state.error = self.state.error is not None, None
            return healed
        try:
            return self._judge(content, judged, apply)
        except Exception as error:
            # A fault of ours: say so once, not at every poll, and go on serving.
            self._reject(judged, f"internal error: {error!r}")
            raise

    def look_again(self) -> None:
        """Believe nothing that was seen of the file but what is in service: the next poll reads it."""
        self._signatures = ()
        self._pending = None

    def _require_rules(self, ruleset: RuleSet) -> None:
        if self._rules_needed and not ruleset.rules:
            raise ConfigurationError(f"{self.path} has no rules: a server would limit nothing")

    def _judge(self, content: bytes, judged: bytes, apply: Callable[[RuleSet], None]) -> bool:
        ruleset, problems = check_rules(content, str(self.path))
        if ruleset is None:
            return self._reject(judged, "\n".join(str(problem) for problem in problems))
        ruleset = replace(ruleset, version=self.state.version + 1)
        try:
            self._require_rules(ruleset)
            apply(ruleset)
        except ConfigurationError as error:
            # The fault may lie in a file the rules name, which can be mended without touching this one: keep trying.
            return self._reject(b"", str(error))
        self._accept(ruleset, content)
        return True

    def _unreadable(self, reason: str) -> bool:
        """A file that is gone for one poll only is being replaced; one that stays away is an error."""
        if reason == self.state.error:
            return False
        if self._pending != _GONE:
            self._pending = _GONE
            return False
        return self._reject(b"", reason)

    def _changed_content(self) -> bytes | None:
        """Content not judged yet, seen the same by two polls in a row; None where there is nothing new to judge."""
        signatures = self._look()
        if signatures == self._signatures and self._pending is None and self.state.error is None:
            newest_us = max(signature[2] for signature in signatures if signature is not None) // 1_000
            if self._clock.now_us() - newest_us >= _SETTLED_US:
                return None
        self._signatures = signatures
        content = _read(self.path)
        digest = self._digest(content)
        if digest == self._judged:
            self._pending = None
            return None
        if digest != self._pending:
            self._pending = digest
            return None
        self._pending = None
        return content

    def _look(self) -> tuple[Signature | None, ...]:
        """The status of the rule file, which must be there, and of the files its rules name."""
        return (_signature(self.path), *(signature_if_there(path) for path in self._side_files))

    def _digest(self, content: bytes) -> bytes:
        """Stands for the content of the rule file and of the files that the rules in service name."""
        whole = hashlib.sha256(content)
        for path in self._side_files:
            try:
                whole.update(hashlib.sha256(_read(path, _SIDE_FILE_BYTES_MAX)).digest())
            except ConfigurationError:
                whole.update(_GONE)
        return whole.digest()

    def _accept(self, ruleset: RuleSet, content: bytes) -> None:
        identity = ruleset.identity
        names = identity.files if isinstance(identity, IdentityConfig) else ()
        self._side_files = tuple(self.path.parent / name for name in names)
        self._signatures = ()
        self._accepted = self._judged = self._digest(content)
        state = self.state
        state.version, state.digest, state.error = ruleset.version, ruleset.digest, None
        state.loaded_us = self._clock.now_us()
        state.accepted += 1
        self._keep(content)

    def _keep(self, content: bytes) -> None:
        if self._kept is None:
            return
        written = self._kept.with_suffix(f".{os.getpid()}")
        # Without it a process that is started while the file is bad cannot serve; this one can.
        with contextlib.suppress(OSError):
            written.write_bytes(b"%d\n%b" % (self.state.version, content))
            written.replace(self._kept)

    def _recall(self) -> tuple[int, bytes | None]:
        """Version and content that are kept; 0 and None where there is nothing."""
        if self._kept is None:
            return 0, None
        try:
            version, _, content = self._kept.read_bytes().partition(b"\n")
        except OSError:
            return 0, None
        return int(version), content

    def _reject(self, judged: bytes, reason: str) -> bool:
        self._pending = None
        self._judged = judged
        if reason == self.state.error:
            return False
        self.state.error = reason
        self.state.rejected += 1
        return True


def check_file(path: Path) -> tuple[RuleSet | None, tuple[Problem, ...]]:
    """``check_rules`` of a file; raises ConfigurationError where it cannot be read."""
    return check_rules(_read(path), str(path))


def _signature(path: Path) -> Signature:
    try:
        return signature_of(path)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {_reason(error)}") from error


def _read(path: Path, bytes_max: int = RULES_BYTES_MAX) -> bytes:
    try:
        with open_regular(path) as file:
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {_reason(error)}") from error
    if len(content) > bytes_max:
        raise ConfigurationError(f"{path} is larger than {bytes_max} bytes")
    return content


def _reason(error: OSError) -> str:
    return "it does not exist" if error.errno == errno.ENOENT else str(error.strerror)
