"""Identity and rules together: what a request is counted by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sluicegate.clock import ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.identity.keys import hash_key
from sluicegate.rules.identity.resolver import Headers
from sluicegate.rules.load import load_rules

NOW_S = 1_700_000_000
STRANGER = "198.51.100.66"
RULES = """
version: 1
identity:
  trusted_peers: [10.0.0.0/8]
  api_key: {keys: keys.txt}
  tier: {header: X-Tier}
subjects: {"api_key:billing": paid}
tiers: {default: free, names: [free, paid]}
rules:
  - name: api
    per: {first_of: [api_key, ip]}
    quota: {free: 3/hour, paid: 5/hour}
"""


def allowed(limiter: Limiter, headers: Headers, peer: str, times: int) -> int:
    return sum(limiter.check(limiter.resolver.facts("GET", "/", None, headers, peer)).allowed for _ in range(times))


def made(tmp_path: Path, text: str = RULES) -> Limiter:
    (tmp_path / "keys.txt").write_text(f"billing: {hash_key('s3cr3t')}\n")
    (tmp_path / "rules.yaml").write_text(text)
    return Limiter.from_file(tmp_path / "rules.yaml", clock=ManualClock(NOW_S * 1_000_000))


def test_unknown_keys_share_their_address(tmp_path: Path) -> None:
    """A new key with every request does not buy a new quota: the address is what counts."""
    limiter = made(tmp_path)
    admitted = sum(
        allowed(limiter, [(b"X-API-Key", b"%d" % number), (b"X-Tier", b"paid")], STRANGER, 1) for number in range(50)
    )
    assert admitted == 3


def test_a_known_key_has_its_own_quota_and_tier(tmp_path: Path) -> None:
    """The key's name finds its tier among the subjects, from whatever address it comes."""
    limiter = made(tmp_path)
    assert allowed(limiter, [], STRANGER, 10) == 3
    assert allowed(limiter, [(b"X-API-Key", b"s3cr3t")], STRANGER, 3) == 3
    assert allowed(limiter, [(b"X-API-Key", b"s3cr3t")], "2001:db8::1", 10) == 2


def test_neighbours_in_a_64_share_and_others_do_not(tmp_path: Path) -> None:
    """P90: two addresses of one /64 share a counter, the next /64 has its own."""
    limiter = made(tmp_path)
    assert allowed(limiter, [], "2001:db8:0:1::1", 2) == 2
    assert allowed(limiter, [], "2001:db8:0:1:ffff::9", 10) == 1
    assert allowed(limiter, [], "2001:db8:0:2::1", 10) == 3


def test_a_peer_without_address_is_not_a_shared_key(tmp_path: Path) -> None:
    """Requests over a Unix socket without a known client skip the rule; they do not share one counter."""
    limiter = made(tmp_path)
    facts = limiter.resolver.facts("GET", "/", None, [], None)
    assert facts.ip is None
    assert [limiter.check(facts).rule for _ in range(10)] == [None] * 10


def test_a_rule_edit_keeps_fetched_keys_and_counts(tmp_path: Path, ec_issuer: Any) -> None:
    """Users of tokens stay known while rules are edited: nothing has to be fetched again first."""
    rules = """
version: 1
identity:
  jwt: {jwks: "https://idp.example/jwks"}
rules:
  - {name: users, per: [user], quota: 3/hour}
"""
    limiter = made(tmp_path, rules)
    limiter.resolver.refresh(lambda _: json.dumps({"keys": [ec_issuer.jwk]}).encode())
    token = b"Bearer " + ec_issuer.sign({"sub": "8123", "exp": NOW_S + 60})
    headers = [(b"Authorization", token)]
    assert allowed(limiter, headers, STRANGER, 1) == 1
    limiter.apply(load_rules(rules.replace("3/hour", "4/hour"), "rules.yaml", 2))
    facts = limiter.resolver.facts("GET", "/", None, headers, STRANGER)
    assert facts.user == "8123"
    assert allowed(limiter, headers, STRANGER, 10) == 3
    assert limiter.resolver.stats.token_verified == 2
