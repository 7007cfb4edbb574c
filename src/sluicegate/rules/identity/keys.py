"""Known API keys, stored as SHA-256 digests.

A keys file has one key per line, and is a YAML mapping as well:

    # who: digest of the key
    billing-service: sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    mobile-app:      sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752

The name is the identity; the key itself is never kept, compared or shown. A name may stand on two lines while its key is
being exchanged. A key must be random (32 bytes from a generator of secrets): a plain digest does not protect a word that
can be guessed, and a slow password hash has no place on every request.

Looking the digest up in a table takes a time that depends on the digest, not on how much of the key was guessed right:
whoever measures it learns bits of a SHA-256 value, from which no key follows. So no constant-time comparison is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from sluicegate.bounds import IDENTITY_BYTES_MAX, KEYS_FILE_BYTES_MAX
from sluicegate.errors import ConfigurationError
from sluicegate.rules.identity.files import read_file

__all__ = ["KnownKeys", "hash_key", "load_keys"]

_LINE = re.compile(
    r"""(?P<quote>["']?)(?P<name>[A-Za-z0-9][A-Za-z0-9_.@-]*)(?P=quote)\s*:\s+"""
    r"""(?P<quote2>["']?)sha256:(?P<digest>[0-9A-Fa-f]{64})(?P=quote2)(?:\s+\#.*)?""",
    re.ASCII | re.VERBOSE,
)


class KnownKeys:
    """An immutable table from a key's digest to its name."""

    __slots__ = ("_names",)

    def __init__(self, names: Mapping[bytes, str]) -> None:
        self._names = dict(names)

    @classmethod
    def parse(cls, text: str, source: str) -> KnownKeys:
        """Read the text of a keys file; raises ConfigurationError naming ``source`` and the line.

        The message never repeats the line's value, which may be a key pasted without being hashed.
        """
        names: dict[bytes, str] = {}
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.strip()
            if not line or line.startswith("#") or line == "---":
                continue
            match = _LINE.fullmatch(line)
            if match is None:
                raise ConfigurationError(f"{source}:{number}: not of the form 'name: sha256:<64 hexadecimal digits>'")
            name = match["name"]
            if len(name) > IDENTITY_BYTES_MAX:
                raise ConfigurationError(f"{source}:{number}: a name has at most {IDENTITY_BYTES_MAX} characters")
            other = names.setdefault(bytes.fromhex(match["digest"]), name)
            if other != name:
                raise ConfigurationError(f"{source}:{number}: {name!r} and {other!r} have the same key")
        return cls(names)

    def name_of(self, key: bytes) -> str | None:
        """The name of a key as presented, or None where it is unknown."""
        return self._names.get(sha256(key).digest())

    def __len__(self) -> int:
        return len(self._names)


def load_keys(path: Path) -> KnownKeys:
    """Read a keys file; raises ConfigurationError naming the path and, for a bad line, its number."""
    return KnownKeys.parse(read_file(path, KEYS_FILE_BYTES_MAX, "keys file").decode("utf-8-sig", "replace"), str(path))


def hash_key(key: str) -> str:
    """The value to write into a keys file for this key: ``sha256:`` and 64 hexadecimal digits."""
    return f"sha256:{sha256(key.encode()).hexdigest()}"
