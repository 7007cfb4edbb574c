"""What clients are called in what is told of them: digests, or themselves.

A digest is the first 16 hexadecimal characters of HMAC-SHA-256(secret, subject), where a subject is what counters are kept by, such as
``user:8123`` or ``ip:203.0.113.9|endpoint:/login``. Without the secret nobody can try candidates; with it anybody can, so it
belongs to those who may look clients up. It is no encryption: what was a digest stays one. Of a million clients two have one
digest with a probability of 3 in 100 million.

Several machines that are to call a client by one name share the secret. Its file holds one a line; the first is used, the others are
those before it, by which clients are still found in what was told then.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets as randomness
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sluicegate.bounds import ANALYTICS_NAMES_MAX, ANALYTICS_SECRET_CHARS_MAX, ANALYTICS_SECRETS_MAX
from sluicegate.errors import ConfigurationError
from sluicegate.rules.identity.addresses import IpKeyer, canonical_ip
from sluicegate.stores.keys import escape

__all__ = ["SECRETS_NAME", "Names", "is_digest", "load_secrets", "parse_secret"]

SECRETS_NAME: Final = "analytics.secret"
"""In the data directory."""

_CHARS_MIN: Final = 16
_DIGEST: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_NETWORK_OF: Final = IpKeyer().key


class Names:
    """Names of clients under secrets, the first of which is used for new ones. Safe from any thread. ValueError without any.

    A call takes 2 us for a client not seen lately, a tenth of one for another.
    """

    __slots__ = ("_keys", "_known")

    def __init__(self, secrets: Sequence[bytes]) -> None:
        if not secrets or not all(secrets):
            raise ValueError("secrets: want at least one, and none that is empty")
        self._keys = tuple(hmac.new(secret, digestmod=hashlib.sha256) for secret in secrets)
        self._known: dict[str, str] = {}

    def __call__(self, subject: str) -> str:
        """The digest of a subject."""
        known = self._known
        name = known.get(subject)
        if name is None:
            if len(known) >= ANALYTICS_NAMES_MAX:
                self._known = known = {}
            name = known[subject] = _digest(self._keys[0], subject)
        return name

    def candidates(self, subject: str) -> tuple[str, ...]:
        """All names that a client may have been told of under: its digest by each secret, the newest first, and its own.

        ``subject``: a digest, or as counters are kept by it, or with values that are not escaped, or an address without its kind. An address
        is that client, and its network as clients are by default (/64 of IPv6).
        """
        if is_digest(subject):
            return (subject,)
        spellings = dict.fromkeys(each for text in _meant(subject) for each in (text, _escaped(text)))
        return (*(_digest(key, each) for key in self._keys for each in spellings), *spellings)


def is_digest(text: str) -> bool:
    """Whether a text has the form of a digest; no subject has, as each names its dimension."""
    return _DIGEST.fullmatch(text) is not None


def load_secrets(data: Path, *, make: bool = True, file: Path | None = None) -> tuple[bytes, ...]:
    """The secrets in a data directory. ``make``: one is drawn where there is no file, readable by its owner only; else there are none.

    Of several processes that make it at once one does, and all read that. ``file``: that one instead, which must be there. Raises ConfigurationError.
    """
    path = data / SECRETS_NAME if file is None else file
    make = make and file is None
    try:
        if make and not path.exists():
            _make(path)
        with path.open("rb") as opened:
            text = opened.read(ANALYTICS_SECRETS_MAX * (ANALYTICS_SECRET_CHARS_MAX + 1) + 1).decode()
    except FileNotFoundError:
        if file is not None:
            raise ConfigurationError(f"cannot use {str(path)!r}: there is no such file") from None
        if not make:
            return ()
        raise ConfigurationError(f"cannot make {str(path)!r}: there is no such directory") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigurationError(f"cannot use {str(path)!r}: {reason}") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not 1 <= len(lines) <= ANALYTICS_SECRETS_MAX:
        raise ConfigurationError(
            f"{str(path)!r}: want 1 to {ANALYTICS_SECRETS_MAX} secrets, one a line, got {len(lines)}"
        )
    return tuple(parse_secret(line, str(path)) for line in lines)


def parse_secret(text: str, where: str) -> bytes:
    """A secret as a setting has it. Raises ConfigurationError, which names ``where`` it is from and not the secret."""
    secret = text.strip().encode()
    if not _CHARS_MIN <= len(secret) <= ANALYTICS_SECRET_CHARS_MAX:
        raise ConfigurationError(
            f"{where}: a secret has {_CHARS_MIN} to {ANALYTICS_SECRET_CHARS_MAX} bytes, this one {len(secret)}"
        )
    return secret


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{randomness.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{randomness.token_hex(32)}\n")
            file.flush()
            os.fsync(file.fileno())
        # Linked when it is whole: who finds the file finds all of it, and the first of several stays.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _meant(subject: str) -> tuple[str, ...]:
    """The subject; of an address, with its kind or without, what counters may be kept by."""
    try:
        address = canonical_ip(subject.removeprefix("ip:"))
    except ValueError:
        return (subject,)
    return f"ip:{address}", f"ip:{_NETWORK_OF(address)}"


def _escaped(subject: str) -> str:
    """With the values of its dimensions as keys have them."""
    parts = (part.partition(":") for part in subject.split("|"))
    return "|".join(f"{name}{colon}{escape(value) if colon else ''}" for name, colon, value in parts)


def _digest(key: hmac.HMAC, subject: str) -> str:
    made = key.copy()
    made.update(subject.encode(errors="surrogatepass"))
    return made.hexdigest()[:16]
