"""What the tests of identity share: settings from YAML shapes, and key pairs made once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from sluicegate.clock import ManualClock
from sluicegate.rules.identity.config import IdentityConfig
from sluicegate.rules.identity.parse import parse_identity
from sluicegate.rules.identity.resolver import IdentityResolver
from sluicegate.rules.model import Tiers

NOW_S = 1_700_000_000
TIERS = Tiers(("free", "paid"), "free")


@dataclass(frozen=True)
class Issuer:
    """A private key, its public JWK, and how to sign with it."""

    private: Any
    jwk: dict[str, Any]
    algorithm: str

    def sign(self, claims: dict[str, Any], **headers: Any) -> bytes:
        """A token; the header has the key's id unless ``kid=None`` is given."""
        fields = {"kid": self.jwk["kid"], **headers}
        fields = {name: value for name, value in fields.items() if value is not None}
        return jwt.encode(claims, self.private, algorithm=self.algorithm, headers=fields).encode()


@pytest.fixture(scope="session")
def rsa_issuer() -> Issuer:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return Issuer(private, json.loads(RSAAlgorithm.to_jwk(private.public_key())) | {"kid": "rsa-1"}, "RS256")


@pytest.fixture(scope="session")
def ec_issuer() -> Issuer:
    private = ec.generate_private_key(ec.SECP256R1())
    return Issuer(private, json.loads(ECAlgorithm.to_jwk(private.public_key())) | {"kid": "ec-1"}, "ES256")


@pytest.fixture(scope="session")
def ed_issuer() -> Issuer:
    private = ed25519.Ed25519PrivateKey.generate()
    return Issuer(private, json.loads(OKPAlgorithm.to_jwk(private.public_key())) | {"kid": "ed-1"}, "EdDSA")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_S * 1_000_000)


@pytest.fixture
def settings() -> Callable[[object], IdentityConfig]:
    """Parse an ``identity:`` block that is valid."""

    def parse(raw: object) -> IdentityConfig:
        problems: list[tuple[str, str, str | None]] = []
        config = parse_identity(raw, lambda *problem: problems.append(problem))
        assert problems == []
        assert config is not None
        return config

    return parse


@pytest.fixture
def resolver(
    settings: Callable[[object], IdentityConfig], clock: ManualClock, tmp_path: Path
) -> Callable[..., IdentityResolver]:
    """Build the resolver of an ``identity:`` block whose files are in ``tmp_path``."""

    def build(raw: object, *, wanted: frozenset[str] | None = frozenset()) -> IdentityResolver:
        return IdentityResolver(settings(raw), TIERS, clock=clock, base_dir=tmp_path, wanted_headers=wanted)

    return build
