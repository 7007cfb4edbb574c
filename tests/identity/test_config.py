"""The identity block: read whole, every problem named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.rules.identity.config import (
    ASYMMETRIC_ALGORITHMS,
    ClaimSource,
    HeaderSource,
    IdentityConfig,
    JwtConfig,
    KeySource,
)
from sluicegate.rules.identity.parse import parse_identity

Settings = Callable[[object], IdentityConfig]
Problem = tuple[str, str, str | None]


def problems_of(raw: object) -> list[Problem]:
    found: list[Problem] = []
    config = parse_identity(raw, lambda *problem: found.append(problem))
    assert (config is None) == bool(found)
    return found


def test_the_documented_block(settings: Settings) -> None:
    """The example of the reference means what it says."""
    config = settings(
        {
            "trusted_peers": ["127.0.0.0/8"],
            "api_key": {"header": "X-API-Key"},
            "user": {"header": "X-User-Id"},
            "tier": {"header": "X-Tier"},
            "ip": {"ipv6_prefix": 56, "ipv4_prefix": 24},
        }
    )
    assert config.api_key == HeaderSource("x-api-key")
    assert config.user == HeaderSource("x-user-id")
    assert config.tier == HeaderSource("x-tier")
    assert config.tenant is None
    assert (config.ipv4_prefix, config.ipv6_prefix) == (24, 56)
    assert config.trusted_peers.contains("127.0.0.1")
    assert config.identity_headers == {"x-api-key", "x-user-id", "x-tier"}
    assert config.forwarding_headers == {"x-forwarded-for", "forwarded"}
    assert config.files == ()


def test_no_block_believes_nobody(settings: Settings) -> None:
    """Without the block, and with an empty one, no peer is trusted and nothing but the address is known."""
    assert settings(None) == settings({}) == IdentityConfig()
    assert not IdentityConfig().trusted_peers
    assert not IdentityConfig().trust_unix
    assert list(IdentityConfig().sources()) == []
    assert (IdentityConfig().ipv4_prefix, IdentityConfig().ipv6_prefix) == (32, 64)


def test_keys_and_tokens(settings: Settings) -> None:
    """Keys, a shared token issuer and a separate one can stand side by side."""
    config = settings(
        {
            "api_key": {"keys": "keys.txt", "header": "X-Key"},
            "user": {"claim": "sub"},
            "tier": {"claim": "plan"},
            "tenant": {"jwt": {"jwks": "https://other.example/jwks", "claim": "org", "header": "X-Other-Token"}},
            "jwt": {
                "jwks": "jwks.json",
                "issuer": "https://a.example",
                "audience": ["api", "web"],
                "algorithms": ["ES256"],
            },
        }
    )
    shared = JwtConfig("jwks.json", ("https://a.example",), ("api", "web"), ("ES256",))
    other = JwtConfig("https://other.example/jwks", header="x-other-token")
    assert config.api_key == KeySource("keys.txt", "x-key")
    assert config.user == ClaimSource("sub", shared)
    assert config.tier == ClaimSource("plan", shared)
    assert config.tenant == ClaimSource("org", other)
    assert (shared.is_url, other.is_url) == (False, True)
    assert other.algorithms == ASYMMETRIC_ALGORITHMS
    assert config.files == ("jwks.json", "keys.txt")
    assert config.identity_headers == frozenset(), "a header that carries a secret is no identity by itself"


def test_a_token_is_the_user_by_default(settings: Settings) -> None:
    """``jwt`` alone gives the user its ``sub``, or the claim that is named."""
    assert settings({"jwt": {"jwks": "k.json"}}).user == ClaimSource("sub", JwtConfig("k.json"))
    assert settings({"jwt": {"jwks": "k.json", "claim": "email"}}).user == ClaimSource("email", JwtConfig("k.json"))


def test_a_unix_socket_peer_can_be_trusted(settings: Settings) -> None:
    """``unix`` stands for peers without an address, and needs to be told which header its proxy sets."""
    config = settings({"trusted_peers": ["unix"], "ip": {"header": "X-Forwarded-For"}})
    assert config.trust_unix
    assert not config.trusted_peers
    assert config.forwarding_headers == {"x-forwarded-for"}
    assert [problem[0] for problem in problems_of({"trusted_peers": ["unix"]})] == ["identity.ip.header"]


ONE_SOURCE = (
    "must be exactly one of {header: NAME}, {keys: FILE}, {claim: NAME} and {jwt: {...}}; only keys may also have the "
    "header that carries the key"
)
BAD: list[tuple[object, list[Problem]]] = [
    ([], [("identity", "must be a mapping with trusted_peers, user, api_key, tenant, tier, ip, jwt, got []", None)]),
    ({"trusted_peer": []}, [("identity.trusted_peer", "unknown field 'trusted_peer'", "trusted_peers")]),
    ({7: 1}, [("identity.7", "unknown field 7", None)]),
    (
        {"trusted_peers": "10.0.0.0/8"},
        [
            (
                "identity.trusted_peers",
                "must be a list of networks such as [10.0.0.0/8], got '10.0.0.0/8'",
                "[10.0.0.0/8]",
            )
        ],
    ),
    (
        {"trusted_peers": ["10.0.0.1/8", None, "proxy"]},
        [
            ("identity.trusted_peers[0]", "'10.0.0.1/8' has host bits set; the network is '10.0.0.0/8'", "10.0.0.0/8"),
            ("identity.trusted_peers[1]", "must be text, got None", None),
            ("identity.trusted_peers[2]", "'proxy' is not a network such as 10.0.0.0/8 or 2001:db8::/32", None),
        ],
    ),
    ({"user": None}, [("identity.user", ONE_SOURCE, None)]),
    ({"user": {}}, [("identity.user", ONE_SOURCE, None)]),
    ({"user": "X-User"}, [("identity.user", "must be a mapping with header, keys, claim, jwt, got 'X-User'", None)]),
    ({"user": {"headr": "X-User"}}, [("identity.user.headr", "unknown field 'headr'", "header")]),
    ({"user": {"header": "X-U", "claim": "sub"}, "jwt": {"jwks": "k"}}, [("identity.user", ONE_SOURCE, None)]),
    ({"user": {"keys": "a", "claim": "sub"}, "jwt": {"jwks": "k"}}, [("identity.user", ONE_SOURCE, None)]),
    ({"user": {"header": 3}}, [("identity.user.header", "must be a header name such as X-User-Id, got 3", None)]),
    (
        {"user": {"header": "X_User_Id"}},  # P89
        [
            (
                "identity.user.header",
                "'X_User_Id' is not a usable header name (letters, digits and hyphens)",
                "X-User-Id",
            )
        ],
    ),
    (
        {"user": {"header": "X User"}},
        [("identity.user.header", "'X User' is not a usable header name (letters, digits and hyphens)", None)],
    ),
    (
        {"api_key": {"header": "Authorization"}},
        [
            (
                "identity.api_key.header",
                "'Authorization' cannot be an identity: it belongs to the protocol or carries a secret",
                None,
            )
        ],
    ),
    ({"user": {"keys": ""}}, [("identity.user.keys", "must be the path of a keys file, got ''", None)]),
    (
        {"tier": {"keys": "k.txt"}},
        [("identity.tier.keys", "a tier cannot be a key's name; map keys to tiers under subjects instead", None)],
    ),
    (
        {"user": {"claim": "sub"}},
        [("identity.user.claim", "needs an identity.jwt block that says how tokens are verified", None)],
    ),
    (
        {"user": {"header": "X-User"}, "jwt": {"jwks": "k"}},
        [("identity.jwt", "no identity reads a claim of the token; give one {claim: NAME}", None)],
    ),
    (
        {"user": {"claim": "a"}, "jwt": {"jwks": "k", "claim": "b"}},
        [("identity.jwt.claim", "is the user's claim, but identity.user says otherwise; keep one of them", None)],
    ),
    ({"jwt": None}, [("identity.jwt.jwks", "is missing: the URL or the path of the issuer's key set (JWKS)", None)]),
    (
        {"jwt": {"jwks": "http://idp.example/keys"}},
        [
            (
                "identity.jwt.jwks",
                "'http://idp.example/keys' is not encrypted: whoever is on the way could choose the keys",
                "https://idp.example/keys",
            )
        ],
    ),
    (
        {"jwt": {"jwks": "https://u:p4ss@idp.example/keys"}},
        [("identity.jwt.jwks", "holds a user name or a password; rules are no place for secrets", None)],
    ),
    ({"jwt": {"jwks": "ftp://a/b"}}, [("identity.jwt.jwks", "'ftp://a/b' is neither an https URL nor a path", None)]),
    ({"jwt": {"jwks": "https:///b"}}, [("identity.jwt.jwks", "'https:///b' has no valid host", None)]),
    ({"jwt": {"jwks": "https://[::1/b"}}, [("identity.jwt.jwks", "'https://[::1/b' has no valid host", None)]),
    (
        {"jwt": {"jwks": "k", "algorithms": ["None"]}},
        [("identity.jwt.algorithms[0]", "'none' means no signature at all and is never accepted", None)],
    ),
    (
        {"jwt": {"jwks": "k", "algorithms": ["rs256"]}},
        [("identity.jwt.algorithms[0]", "'rs256' is not a known algorithm", "RS256")],
    ),
    (
        {"jwt": {"jwks": "k", "algorithms": []}},
        [("identity.jwt.algorithms", "is empty: no token could be verified", None)],
    ),
    (
        {"jwt": {"jwks": "k", "algorithms": ["HS256", "RS256"]}},
        [
            (
                "identity.jwt.algorithms",
                "mixes secrets (HS256, HS384, HS512) with public keys; a key set is one or the other",
                None,
            )
        ],
    ),
    (
        {"jwt": {"jwks": "https://idp.example/keys", "algorithms": ["HS256"]}},
        [
            (
                "identity.jwt.algorithms",
                "HS256, HS384 and HS512 use a secret, which must come from a file, not a URL",
                None,
            )
        ],
    ),
    (
        {"jwt": {"jwks": "k", "leeway_s": 301}},
        [("identity.jwt.leeway_s", "must be an integer from 0 to 300, got 301", None)],
    ),
    (
        {"jwt": {"jwks": "k", "claim": "c" * 257}},
        [("identity.jwt.claim", "has 257 characters; a claim's name has at most 256", None)],
    ),
    (
        {"jwt": {"jwks": "k", "issuer": 3}},
        [("identity.jwt.issuer", "must be a text or a list of texts, got 3", None)],
    ),
    (
        {"ip": {"ipv6_prefix": 129, "ipv4_prefix": True}},
        [
            ("identity.ip.ipv4_prefix", "must be an integer from 0 to 32, got True", None),
            ("identity.ip.ipv6_prefix", "must be an integer from 0 to 128, got 129", None),
        ],
    ),
    ({"ip": {"ipv6": 64}}, [("identity.ip.ipv6", "unknown field 'ipv6'", "ipv6_prefix")]),
]


@pytest.mark.parametrize(("raw", "expected"), BAD)
def test_bad_blocks_name_field_and_value(raw: object, expected: list[Problem]) -> None:
    """Each mistake is reported with its path, what is wrong and what was probably meant."""
    assert problems_of(raw) == expected


def test_all_problems_are_listed() -> None:
    """T113: one run shows every problem of the block; a source that cannot be used never falls back silently."""
    raw = {
        "trusted_peers": ["x"],
        "user": {"header": "X_U"},
        "api_key": {"kees": "f"},
        "tenant": {"claim": "org"},
        "ip": {"ipv4_prefix": 99},
    }
    assert {path for path, _, _ in problems_of(raw)} == {
        "identity.trusted_peers[0]",
        "identity.user.header",
        "identity.api_key.kees",
        "identity.tenant.claim",
        "identity.ip.ipv4_prefix",
    }


YAML = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "trusted_peers",
                    "user",
                    "api_key",
                    "tier",
                    "ip",
                    "jwt",
                    "header",
                    "keys",
                    "claim",
                    "jwks",
                    "algorithms",
                    "zz",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(YAML)
def test_any_yaml_gives_settings_or_problems(raw: object) -> None:
    """Whatever a file holds there, the answer is settings or a list of problems under ``identity``, never a traceback."""
    assert all(path.startswith("identity") for path, _, _ in problems_of(raw))


@pytest.mark.parametrize(
    ("peers", "message"),
    [
        ([], "header 'x-user' is ignored from everybody, because trusted_peers is empty"),
        (["0.0.0.0/0"], "header 'x-user' is believed from strangers, because trusted_peers holds 0.0.0.0/0"),
        (
            ["10.0.0.0/8", "128.0.0.0/1"],
            "header 'x-user' is believed from strangers, because trusted_peers holds 128.0.0.0/1",
        ),
        (["::/0"], "header 'x-user' is believed from strangers, because trusted_peers holds ::/0"),
        (["2000::/3"], "header 'x-user' is believed from strangers, because trusted_peers holds 2000::/3"),
    ],
)
def test_headers_anybody_or_nobody_can_set_are_reported(settings: Settings, peers: list[str], message: str) -> None:
    """A header believed from strangers, or from nobody, is named for the checker's warning."""
    config = settings({"trusted_peers": peers, "user": {"header": "X-User"}, "api_key": {"keys": "k"}})
    assert config.unverified_sources() == (("user", "identity.user.header", message),)


@pytest.mark.parametrize("peers", [["10.0.0.0/8"], ["fc00::/7"], ["203.0.113.0/24", "2001:db8::/32"], ["127.0.0.1"]])
def test_narrow_trust_is_not_reported(settings: Settings, peers: list[str]) -> None:
    """Private networks and a provider's own blocks are what trusted peers look like."""
    assert settings({"trusted_peers": peers, "user": {"header": "X-User"}}).unverified_sources() == ()
