"""Key sets and signatures: the only module that uses PyJWT (RFC 7515, 7517, 7518).

A key is bound to the algorithms its type allows when the set is loaded, and a token's ``alg`` then only selects one of
these pairs. So a token cannot have an RSA public key used as an HMAC secret, cannot name ``none``, and nothing in its
header (``jwk``, ``jku``, ``x5u``) can bring a key along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from sluicegate.bounds import JWKS_BYTES_MAX, JWKS_KEYS_MAX
from sluicegate.errors import ConfigurationError, MissingExtra

if TYPE_CHECKING:
    from jwt import PyJWK

__all__ = ["KeySet", "require_pyjwt"]

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_BY_CURVE = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",), "Ed25519": ("EdDSA",)}
_SECRET = ("HS256", "HS384", "HS512")


class KeySet:
    """An immutable JSON Web Key Set, cut down to the keys and algorithms that may sign here."""

    __slots__ = ("_by_algorithm", "_by_id", "skipped")

    skipped: tuple[str, ...]
    """Why keys of the set are not used, one sentence each: encryption keys, unknown types, short keys."""

    def __init__(self, document: bytes, algorithms: Sequence[str], source: str) -> None:
        """Read a key set that may sign by ``algorithms``.

        Raises ConfigurationError naming ``source`` where the document is no key set, or no key of it can be used;
        MissingExtra where PyJWT or cryptography is not installed.
        """
        require_pyjwt()
        self._by_id: dict[tuple[str, str], PyJWK] = {}
        self._by_algorithm: dict[str, list[PyJWK]] = {}
        skipped = []
        for index, key in enumerate(_keys_of(document, source)):
            kid = key.get("kid")
            name = f"key {kid!r}" if isinstance(kid, str) else f"key number {index + 1}"
            reason = self._add(key, kid if isinstance(kid, str) else None, algorithms)
            if reason:
                skipped.append(f"{name}: {reason}")
        self.skipped = tuple(skipped)
        if not self._by_algorithm:
            raise ConfigurationError(f"{source}: no usable key in the key set ({'; '.join(skipped) or 'it is empty'})")

    def _add(self, key: Mapping[str, object], kid: str | None, algorithms: Sequence[str]) -> str | None:
        """Take a key in; the reason why it cannot be used, otherwise."""
        from jwt import PyJWK, PyJWTError

        if key.get("use", "sig") != "sig" or "verify" not in _texts(key.get("key_ops", ["verify"])):
            return "is not for signatures"
        possible = _possible_algorithms(key)
        usable = [name for name in algorithms if name in possible and key.get("alg", name) == name]
        if not usable:
            return "is of a type, curve or algorithm that is not allowed here"
        if key["kty"] != "oct" and "d" in key:
            return "is a private key; a key set for verification holds public keys"
        for algorithm in usable:
            if kid is not None and (kid, algorithm) in self._by_id:
                return "has the id of an earlier key"
            try:
                loaded = PyJWK(dict(key), algorithm)
                too_short = loaded.Algorithm.check_key_length(loaded.key)
            except PyJWTError as error:
                # The message of the library may hold the key's parts; its type says enough.
                return f"cannot be read ({type(error).__name__})"
            if too_short:
                return "is too short for its algorithm"
            if kid is not None:
                self._by_id[kid, algorithm] = loaded
            self._by_algorithm.setdefault(algorithm, []).append(loaded)
        return None

    def find(self, kid: str | None, algorithm: str) -> PyJWK | None:
        """The key with this id for this algorithm; without an id, the only key for the algorithm."""
        if kid is not None:
            return self._by_id.get((kid, algorithm))
        candidates = self._by_algorithm.get(algorithm, ())
        return candidates[0] if len(candidates) == 1 else None

    @staticmethod
    def verifies(signed: bytes, signature: bytes, key: PyJWK) -> bool:
        """Whether the signature over ``signed`` (the first two segments as sent) is good by this key and its algorithm."""
        return key.Algorithm.verify(signed, key.key, signature)

    def __len__(self) -> int:
        """How many pairs of a key and an algorithm can be used."""
        return sum(map(len, self._by_algorithm.values()))


def require_pyjwt() -> None:
    """Raise MissingExtra where tokens cannot be verified because PyJWT or cryptography is not installed."""
    try:
        import cryptography  # noqa: F401
        import jwt  # noqa: F401
    except ImportError as error:
        raise MissingExtra("server", "verifying tokens (identity.jwt)") from error


def _keys_of(document: bytes, source: str) -> Iterator[dict[str, object]]:
    if len(document) > JWKS_BYTES_MAX:
        raise ConfigurationError(f"{source}: the key set is larger than {JWKS_BYTES_MAX} bytes")
    try:
        decoded = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{source}: not JSON: {error}") from error
    keys = decoded.get("keys") if isinstance(decoded, dict) else None
    if not isinstance(keys, list):
        raise ConfigurationError(f"{source}: not a JSON Web Key Set: it has no list 'keys'")
    if len(keys) > JWKS_KEYS_MAX:
        raise ConfigurationError(f"{source}: the key set has {len(keys)} keys; at most {JWKS_KEYS_MAX} are read")
    return (key for key in keys if isinstance(key, dict))


def _possible_algorithms(key: Mapping[str, object]) -> tuple[str, ...]:
    match key.get("kty"):
        case "RSA":
            return _RSA
        case "oct":
            return _SECRET
        case "EC" | "OKP":
            return _BY_CURVE.get(str(key.get("crv")), ())
    return ()


def _texts(value: object) -> list[object]:
    return value if isinstance(value, list) else []
