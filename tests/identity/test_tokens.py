"""Tokens: believed only with a good signature, in time, for us; everything else is absent and counted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
import warnings
from collections.abc import Callable
from random import Random
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import RSAAlgorithm

from sluicegate.bounds import JWKS_BYTES_MAX, JWKS_KEYS_MAX, TOKEN_BYTES_MAX, TOKENS_MEMO_MAX
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import ConfigurationError, MissingExtra
from sluicegate.rules.identity.config import ASYMMETRIC_ALGORITHMS, SYMMETRIC_ALGORITHMS, JwtConfig
from sluicegate.rules.identity.jwt import KeySet
from sluicegate.rules.identity.stats import IdentityStats
from sluicegate.rules.identity.tokens import TokenVerifier

NOW_S = 1_700_000_000
GOOD = {"sub": "8123", "plan": "paid", "exp": NOW_S + 600}


def b64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def unsigned(header: object, payload: object, signature: bytes = b"") -> bytes:
    return b".".join([b64(json.dumps(header).encode()), b64(json.dumps(payload).encode()), b64(signature)])


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


@pytest.fixture
def verifier(rsa_issuer: Any, ec_issuer: Any, ed_issuer: Any, clock: ManualClock) -> Callable[..., TokenVerifier]:
    def build(*, algorithms: tuple[str, ...] = ASYMMETRIC_ALGORITHMS, **config: Any) -> TokenVerifier:
        made = TokenVerifier(
            JwtConfig("k", algorithms=algorithms, **config), ["sub", "plan"], clock=clock, stats=IdentityStats()
        )
        made.use(KeySet(jwks(rsa_issuer.jwk, ec_issuer.jwk, ed_issuer.jwk), algorithms, "k"))
        return made

    return build


def reasons(verifier: TokenVerifier) -> dict[str, int]:
    return {reason: count for reason, count in verifier.stats.as_dict().items() if count}


def test_good_tokens_of_every_key_type(
    verifier: Callable[..., TokenVerifier], rsa_issuer: Any, ec_issuer: Any, ed_issuer: Any
) -> None:
    """RSA, elliptic curve and Edwards keys are believed, and the wanted claims come out."""
    checked = verifier()
    for issuer in (rsa_issuer, ec_issuer, ed_issuer):
        assert checked.claims(issuer.sign(GOOD)) == {"sub": "8123", "plan": "paid"}
    assert reasons(checked) == {"token_verified": 3}


def test_every_rsa_algorithm_is_bound_to_the_key(verifier: Callable[..., TokenVerifier], rsa_issuer: Any) -> None:
    """A key without ``alg`` verifies all RSA algorithms, PSS too; one with ``alg`` only its own."""
    checked = verifier()
    for algorithm in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"):
        token = jwt.encode(GOOD, rsa_issuer.private, algorithm=algorithm, headers={"kid": "rsa-1"}).encode()
        assert checked.claims(token)["sub"] == "8123"
    checked.use(KeySet(jwks(rsa_issuer.jwk | {"alg": "RS256"}), ASYMMETRIC_ALGORITHMS, "k"))
    assert (
        checked.claims(jwt.encode(GOOD, rsa_issuer.private, algorithm="RS512", headers={"kid": "rsa-1"}).encode()) == {}
    )
    assert checked.stats.token_key_unknown == 1


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", None, 5, ["RS256"]])
def test_none_is_never_accepted(verifier: Callable[..., TokenVerifier], name: object) -> None:
    """A token without a signature is not believed, however ``none`` is spelled."""
    checked = verifier()
    for signature in (b"", b"x"):
        assert checked.claims(unsigned({"alg": name, "kid": "rsa-1"}, GOOD, signature)) == {}
    assert reasons(checked) == {"token_algorithm": 2}


def test_a_public_key_is_no_hmac_secret(verifier: Callable[..., TokenVerifier], rsa_issuer: Any) -> None:
    """The classic confusion, HS256 with the public key as the secret, is refused by the algorithm list and by the key."""
    pem = rsa_issuer.private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    signed = unsigned({"alg": "HS256", "kid": "rsa-1"}, GOOD).rpartition(b".")[0]
    token = signed + b"." + b64(hmac.digest(pem, signed, hashlib.sha256))
    checked = verifier()
    assert checked.claims(token) == {}
    assert reasons(checked) == {"token_algorithm": 1}
    with pytest.raises(ConfigurationError, match="no usable key"):
        KeySet(jwks(rsa_issuer.jwk), SYMMETRIC_ALGORITHMS, "k")


def test_another_rsa_algorithm_than_allowed(verifier: Callable[..., TokenVerifier], rsa_issuer: Any) -> None:
    """Where the settings name algorithms, no other is believed."""
    checked = verifier(algorithms=("ES256", "RS512"))
    assert checked.claims(rsa_issuer.sign(GOOD)) == {}
    assert reasons(checked) == {"token_algorithm": 1}


def test_header_brings_no_key(verifier: Callable[..., TokenVerifier], rsa_issuer: Any, clock: ManualClock) -> None:
    """A key, key URL or certificate inside the token is not looked at."""
    attacker = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    own = json.loads(RSAAlgorithm.to_jwk(attacker.public_key()))
    checked = verifier()
    for header in ({"jwk": own}, {"jku": "https://evil.example/k"}, {"x5u": "https://evil.example/c"}):
        token = jwt.encode(GOOD, attacker, algorithm="RS256", headers={"kid": "rsa-1", **header}).encode()
        assert checked.claims(token) == {}
    assert reasons(checked) == {"token_signature": 3}


def test_expiry_to_the_microsecond(verifier: Callable[..., TokenVerifier], rsa_issuer: Any, clock: ManualClock) -> None:
    """A token is good until ``exp`` plus the leeway and not a microsecond longer, remembered or not."""
    checked = verifier(leeway_s=10)
    token = rsa_issuer.sign(GOOD)
    assert checked.claims(token)["sub"] == "8123"
    clock.set((NOW_S + 610) * US_PER_S - 1)
    assert checked.claims(token)["sub"] == "8123"
    clock.advance(1)
    assert checked.claims(token) == {}
    assert verifier(leeway_s=10).claims(token) == {}
    assert reasons(checked) == {"token_verified": 1, "token_expired": 1}


def test_not_before_to_the_microsecond(
    verifier: Callable[..., TokenVerifier], rsa_issuer: Any, clock: ManualClock
) -> None:
    """A token is not good before ``nbf`` minus the leeway, also when the clock steps back after it was remembered."""
    checked = verifier(leeway_s=0)
    token = rsa_issuer.sign(GOOD | {"nbf": NOW_S + 5})
    assert checked.claims(token) == {}
    clock.set((NOW_S + 5) * US_PER_S)
    assert checked.claims(token)["sub"] == "8123"
    clock.set((NOW_S + 5) * US_PER_S - 1)
    assert checked.claims(token) == {}
    assert reasons(checked) == {"token_verified": 1, "token_not_yet": 2}


@pytest.mark.parametrize("exp", [None, "soon", True, -1, 1e300, float("inf"), [NOW_S], 10**30])
def test_a_token_must_expire(verifier: Callable[..., TokenVerifier], rsa_issuer: Any, exp: object) -> None:
    """A token without an end, or with one that is no date, is not believed."""
    claims = {"sub": "8123"} if exp is None else {"sub": "8123", "exp": exp}
    payload = json.dumps(claims).encode()
    token = jwt.PyJWS().encode(payload, rsa_issuer.private, algorithm="RS256", headers={"kid": "rsa-1"}).encode()
    checked = verifier()
    assert checked.claims(token) == {}
    assert checked.stats.token_expired + checked.stats.token_malformed == 1
    assert checked.stats.token_verified == 0


@pytest.mark.parametrize("nbf", [None, "now", True, -1, 1e300])
def test_a_strange_not_before_is_refused(verifier: Callable[..., TokenVerifier], rsa_issuer: Any, nbf: object) -> None:
    """An ``nbf`` that is no date does not count as passed."""
    payload = json.dumps(GOOD | {"nbf": nbf}).encode()
    token = jwt.PyJWS().encode(payload, rsa_issuer.private, algorithm="RS256", headers={"kid": "rsa-1"}).encode()
    checked = verifier()
    assert checked.claims(token) == {}
    assert reasons(checked) == {"token_not_yet": 1}


def test_issuer_and_audience(verifier: Callable[..., TokenVerifier], rsa_issuer: Any) -> None:
    """Where they are set, one of the issuers must have signed for one of the audiences."""
    checked = verifier(issuer=("https://a", "https://b"), audience=("api",))
    good = GOOD | {"iss": "https://b", "aud": "api"}
    assert checked.claims(rsa_issuer.sign(good))["sub"] == "8123"
    assert checked.claims(rsa_issuer.sign(good | {"aud": ["web", "api"]}))["sub"] == "8123"
    for issuer in ("https://c", ["https://a"], None):
        assert checked.claims(token_of(rsa_issuer, good | {"iss": issuer})) == {}
    for audience in ("web", [], None, {"api": 1}, [["api"]], "ap"):
        assert checked.claims(token_of(rsa_issuer, good | {"aud": audience})) == {}
    assert reasons(checked) == {"token_verified": 2, "token_issuer": 3, "token_audience": 6}


def token_of(issuer: Any, claims: dict[str, Any]) -> bytes:
    """A signed token with claims that PyJWT itself would refuse to write."""
    return (
        jwt.PyJWS()
        .encode(
            json.dumps(claims).encode(), issuer.private, algorithm=issuer.algorithm, headers={"kid": issuer.jwk["kid"]}
        )
        .encode()
    )


def refresh_wanted(verifier: TokenVerifier) -> bool:
    return verifier.unknown_key_seen


def test_unknown_keys_ask_for_a_refresh(
    verifier: Callable[..., TokenVerifier], rsa_issuer: Any, ec_issuer: Any
) -> None:
    """A key id that is not in the set is counted, noted for a refresh, and believed once the set has it."""
    checked = verifier()
    checked.use(KeySet(jwks(ec_issuer.jwk), ASYMMETRIC_ALGORITHMS, "k"))
    token = rsa_issuer.sign(GOOD)
    assert checked.claims(token) == {}
    assert refresh_wanted(checked)
    assert reasons(checked) == {"token_key_unknown": 1}
    checked.use(KeySet(jwks(ec_issuer.jwk, rsa_issuer.jwk), ASYMMETRIC_ALGORITHMS, "k"))
    assert not refresh_wanted(checked)
    assert checked.claims(token)["sub"] == "8123"


def test_a_key_taken_away_is_not_remembered(
    verifier: Callable[..., TokenVerifier], rsa_issuer: Any, ec_issuer: Any
) -> None:
    """A new key set forgets the tokens of the old one: a withdrawn key ends its tokens at once."""
    checked = verifier()
    token = rsa_issuer.sign(GOOD)
    assert checked.claims(token)["sub"] == "8123"
    checked.use(KeySet(jwks(ec_issuer.jwk), ASYMMETRIC_ALGORITHMS, "k"))
    assert checked.claims(token) == {}


def test_tokens_without_a_key_id(rsa_issuer: Any, ec_issuer: Any, clock: ManualClock) -> None:
    """Without ``kid`` the only key for the algorithm is used; where there are two, none is guessed."""
    stats = IdentityStats()
    checked = TokenVerifier(JwtConfig("k"), ["sub"], clock=clock, stats=stats)
    token = rsa_issuer.sign(GOOD, kid=None)
    assert b"kid" not in base64.urlsafe_b64decode(token.split(b".")[0] + b"==")
    checked.use(KeySet(jwks(rsa_issuer.jwk, ec_issuer.jwk), ASYMMETRIC_ALGORITHMS, "k"))
    assert checked.claims(token) == {"sub": "8123"}
    other = json.loads(RSAAlgorithm.to_jwk(rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()))
    checked.use(KeySet(jwks(rsa_issuer.jwk, other), ASYMMETRIC_ALGORITHMS, "k"))
    assert checked.claims(token) == {}
    assert stats.token_key_unknown == 1


def test_before_the_first_key_set_nothing_is_believed(rsa_issuer: Any, clock: ManualClock) -> None:
    """A key set that is still to be fetched leaves tokens absent."""
    checked = TokenVerifier(JwtConfig("https://idp.example/k"), ["sub"], clock=clock, stats=IdentityStats())
    assert checked.claims(rsa_issuer.sign(GOOD)) == {}
    assert reasons(checked) == {"token_key_unknown": 1}


MALFORMED = [
    b"",
    b".",
    b"..",
    b"a.b",
    b"a.b.c.d",
    b"not a token at all",
    b"\xff\xfe.\x00.x",
    unsigned([], GOOD),
    unsigned("x", GOOD),
    unsigned({"alg": "RS256"}, [1]),
    unsigned({"alg": "RS256", "kid": 5}, GOOD, b"x"),
    unsigned({"alg": "RS256", "crit": ["exp"], "exp": 1}, GOOD, b"x"),
    unsigned({"alg": "RS256", "b64": False, "crit": ["b64"]}, GOOD, b"x"),
    b64(b"{" * 3_000) + b".e30.x",
    b64(b"[" * 5_000) + b".e30.x",
]


@pytest.mark.parametrize("token", MALFORMED)
def test_malformed_tokens(verifier: Callable[..., TokenVerifier], token: bytes) -> None:
    """What is no signed compact JWT, or demands extensions, is absent and counted; nothing is raised."""
    checked = verifier()
    assert checked.claims(token) == {}
    assert reasons(checked) == {"token_malformed": 1}


def test_huge_tokens_are_not_looked_at(verifier: Callable[..., TokenVerifier], rsa_issuer: Any) -> None:
    """A token over the bound is refused before it is hashed or decoded, even with a good signature."""
    checked = verifier()
    token = rsa_issuer.sign(GOOD | {"pad": "x" * TOKEN_BYTES_MAX})
    assert checked.claims(token) == {}
    assert reasons(checked) == {"token_too_long": 1}


def test_a_changed_byte_breaks_it(verifier: Callable[..., TokenVerifier], rsa_issuer: Any) -> None:
    """Changing payload, header or signature, or adding bytes that a lax decoder skips, leaves nothing to believe."""
    checked = verifier()
    header, payload, signature = rsa_issuer.sign(GOOD).split(b".")
    other = b64(json.dumps(GOOD | {"sub": "admin"}).encode())
    for token in (
        b".".join([header, other, signature]),
        b".".join([header, payload, signature[:-8] + b"AAAAAAAA"]),
        b".".join([header, payload, b""]),
        b".".join([header, payload + b"!", signature]),
        b".".join([header, payload, signature + b"\n"]),
    ):
        assert checked.claims(token) == {}
    assert checked.stats.token_verified == 0


@pytest.mark.parametrize("name", ["rsa_issuer", "ec_issuer", "ed_issuer"])
def test_signatures_of_any_length(
    verifier: Callable[..., TokenVerifier], request: pytest.FixtureRequest, name: str
) -> None:
    """An empty, short, long or random signature is not good for any key type, and never an exception."""
    issuer = request.getfixturevalue(name)
    signed = issuer.sign(GOOD).rpartition(b".")[0]
    random = Random(7)
    lengths = [*range(70), 255, 256, 257, 1_000]
    checked = verifier()
    for length in lengths:
        assert checked.claims(signed + b"." + b64(random.randbytes(length))) == {}
    assert reasons(checked) == {"token_signature": len(lengths)}


def test_padded_segments_are_read(verifier: Callable[..., TokenVerifier], rsa_issuer: Any) -> None:
    """Some issuers keep the padding of base64 and sign it; their tokens are tokens all the same."""
    header = b64(json.dumps({"alg": "RS256", "kid": "rsa-1", "x": ""}).encode())
    header += b"=" * (-len(header) % 4)
    payload = b64(json.dumps(GOOD).encode())
    payload += b"=" * (-len(payload) % 4)
    assert b"=" in header + payload
    signature = jwt.get_algorithm_by_name("RS256").sign(header + b"." + payload, rsa_issuer.private)
    token = b".".join([header, payload, base64.urlsafe_b64encode(signature)])
    assert verifier().claims(token)["sub"] == "8123"


@given(st.binary(max_size=300))
def test_any_bytes_are_no_token(clock_free: ManualClock, data: bytes) -> None:
    """Arbitrary bytes never raise and never give claims."""
    checked = TokenVerifier(JwtConfig("k"), ["sub"], clock=clock_free, stats=IdentityStats())
    assert checked.claims(data) == {}
    assert sum(checked.stats.as_dict().values()) == 1


@pytest.fixture(scope="module")
def clock_free() -> ManualClock:
    return ManualClock(NOW_S * US_PER_S)


CLAIMS = [
    ("8123", "8123"),
    (8123, "8123"),
    ("Zoë", "Zoë"),
    ("", None),
    (True, None),
    (1.5, None),
    (None, None),
    (["a"], None),
    ({"a": 1}, None),
    ("a\nb", None),
    ("a\x00", None),
    ("x" * 257, None),
    ("é" * 129, None),
]


@pytest.mark.parametrize(("value", "expected"), CLAIMS)
def test_claims_are_texts_or_integers(
    verifier: Callable[..., TokenVerifier], rsa_issuer: Any, value: object, expected: str | None
) -> None:
    """Printable texts within the bound and integers are identities; every other value is absent and counted."""
    checked = verifier()
    assert checked.claims(token_of(rsa_issuer, GOOD | {"sub": value})).get("sub") == expected
    assert checked.stats.claim_absent == (expected is None)


def test_a_token_seen_again_is_not_checked_again(
    verifier: Callable[..., TokenVerifier], rsa_issuer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One signature check serves all requests with the token, while it lasts; a bad signature is checked each time."""
    checked = verifier()
    calls = []
    real = KeySet.verifies

    def counting(*arguments: Any) -> bool:
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(KeySet, "verifies", staticmethod(counting))
    token = rsa_issuer.sign(GOOD)
    for _ in range(5):
        assert checked.claims(token)["sub"] == "8123"
    assert len(calls) == 1
    bad = token[:-8] + b"AAAAAAAA"
    assert [checked.claims(bad), checked.claims(bad)] == [{}, {}]
    assert len(calls) == 3


def test_the_memo_of_tokens_is_bounded(
    verifier: Callable[..., TokenVerifier], rsa_issuer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two generations of the stated size at most; a token in use stays, and no token itself is kept."""
    checked = verifier()
    monkeypatch.setattr(KeySet, "verifies", staticmethod(lambda *_: True))
    used = unsigned({"alg": "RS256", "kid": "rsa-1"}, GOOD | {"n": -1}, b"x")
    for number in range(3 * TOKENS_MEMO_MAX):
        checked.claims(unsigned({"alg": "RS256", "kid": "rsa-1"}, GOOD | {"n": number}, b"x"))
        if number % 1_000 == 0:
            checked.claims(used)
    assert len(checked._recent) <= TOKENS_MEMO_MAX
    assert len(checked._older) <= TOKENS_MEMO_MAX
    assert checked.stats.token_verified == 3 * TOKENS_MEMO_MAX + 1
    assert all(len(digest) == 32 for digest in checked._recent)


def test_secrets_work_where_they_are_asked_for(clock: ManualClock) -> None:
    """HS256 with an ``oct`` key from a file is possible when the settings name it; a short secret is refused."""
    secret = b"0123456789abcdef0123456789abcdef"
    key = {"kty": "oct", "kid": "s", "k": b64(secret).decode()}
    checked = TokenVerifier(JwtConfig("k", algorithms=("HS256",)), ["sub"], clock=clock, stats=IdentityStats())
    checked.use(KeySet(jwks(key), ("HS256",), "k"))
    assert checked.claims(jwt.encode(GOOD, secret, algorithm="HS256", headers={"kid": "s"}).encode()) == {"sub": "8123"}
    with pytest.raises(ConfigurationError, match="too short"):
        KeySet(jwks(key | {"k": b64(b"short").decode()}), ("HS256",), "k")
    with pytest.raises(ConfigurationError, match="not allowed here"):
        KeySet(jwks(key), ASYMMETRIC_ALGORITHMS, "k")


def test_key_sets_keep_what_can_be_used(rsa_issuer: Any, ec_issuer: Any) -> None:
    """Keys for encryption, of unknown types, broken, doubled or private are left out, each with its reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key()
    private = json.loads(RSAAlgorithm.to_jwk(rsa_issuer.private))
    keys = KeySet(
        jwks(
            ec_issuer.jwk,
            ec_issuer.jwk,
            rsa_issuer.jwk | {"use": "enc", "kid": "enc"},
            rsa_issuer.jwk | {"key_ops": ["encrypt"], "kid": "ops"},
            rsa_issuer.jwk | {"alg": "RSA-OAEP", "kid": "oaep"},
            rsa_issuer.jwk | {"n": "!", "kid": "broken"},
            private | {"kid": "private"},
            json.loads(RSAAlgorithm.to_jwk(small)) | {"kid": "small"},
            {"kty": "EC", "crv": "P-999", "kid": "curve"},
            {"kty": "XYZ"},
            {},
        ),
        ASYMMETRIC_ALGORITHMS,
        "k",
    )
    assert len(keys) == 1
    assert keys.find("ec-1", "ES256") is not None
    assert keys.find("ec-1", "RS256") is None
    assert [line.split(":")[0] for line in keys.skipped] == [
        "key 'ec-1'",
        "key 'enc'",
        "key 'ops'",
        "key 'oaep'",
        "key 'broken'",
        "key 'private'",
        "key 'small'",
        "key 'curve'",
        "key number 10",
        "key number 11",
    ]
    assert private["d"] not in "".join(keys.skipped)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no list 'keys'"),
        (b'{"keys": {}}', "no list 'keys'"),
        (b'{"keys": []}', "it is empty"),
        (b'{"keys": [1, "x"]}', "it is empty"),
        (json.dumps({"keys": [{}] * (JWKS_KEYS_MAX + 1)}).encode(), f"at most {JWKS_KEYS_MAX} are read"),
        (b" " * (JWKS_BYTES_MAX + 1), f"larger than {JWKS_BYTES_MAX} bytes"),
    ],
)
def test_bad_key_sets_are_named(document: bytes, message: str) -> None:
    """A document that is no key set is an error that says where it came from and what is wrong."""
    with pytest.raises(ConfigurationError, match=f"^https://idp/k: .*{message}"):
        KeySet(document, ASYMMETRIC_ALGORITHMS, "https://idp/k")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    """Without PyJWT the settings that need it fail at load and name the extra."""
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(MissingExtra, match=r"sluicegate\[server\]"):
        TokenVerifier(JwtConfig("k"), ["sub"], clock=clock, stats=IdentityStats())
