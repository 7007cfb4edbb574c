from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from sluicegate.rules.load import load_rules

BASE = """\
version: 1
tiers: {default: free, names: [free, paid]}
rules:
  - name: a
    match: {path: /a, headers: {X-A: "1", X-B: "2"}}
    per: [ip]
    quota: {free: 60/minute, paid: 120/minute}
  - name: b
    quota: 1000/second
"""


def digest(text: str) -> str:
    return load_rules(text, "f").digest


SAME = [
    ("version: 1\n", "# a comment\nversion: 1\n"),
    ("60/minute", "60/1m"),
    ("60/minute", "{capacity: 60, refill_per_sec: 1}"),
    ('{X-A: "1", X-B: "2"}', '{x-b: "2", x-a: "1"}'),
    ("per: [ip]", "per: ip"),
    ("quota: 1000/second", "quota: 1000/second\n    mode: enforce"),
]


@pytest.mark.parametrize("old, new", SAME)
def test_the_digest_ignores_spelling(old, new):
    """Comments, layout, spelling of quotas and defaults written out do not change the digest."""
    assert digest(BASE.replace(old, new)) == digest(BASE)


OTHER = [
    ("60/minute", "61/minute"),
    ("path: /a", "path: /b"),
    ("per: [ip]", "per: [user]"),
    ("per: [ip]", "per: {first_of: [ip]}"),
    ("default: free", "default: paid"),
    ("1000/second", "1000/second burst 1001"),
    ("name: b", "name: c"),
    ("quota: 1000/second", "quota: 1000/second\n    on_store_failure: open"),
    ("version: 1\n", "version: 1\nidentity: {ip: {ipv6_prefix: 56}}\n"),
    ("version: 1\n", "version: 1\nidentity: {trusted_peers: [10.0.0.0/8]}\n"),
    ("version: 1\n", "version: 1\nsubjects: {'user:u': paid}\n"),
]


@pytest.mark.parametrize("old, new", OTHER)
def test_the_digest_follows_the_meaning(old, new):
    """Whatever may change a decision changes the digest."""
    assert digest(BASE.replace(old, new)) != digest(BASE)


def test_the_digest_follows_the_order_of_rules():
    """Rules are evaluated in file order, so their order is part of the meaning."""
    at_a, at_b = BASE.index("  - name: a"), BASE.index("  - name: b")
    assert digest(BASE[:at_a] + BASE[at_b:] + BASE[at_a:at_b]) != digest(BASE)


def test_the_digest_is_the_same_in_every_process():
    """16 hex digits that do not depend on the process: nodes and people compare them."""
    text = BASE.replace("version: 1\n", "version: 1\nidentity: {trusted_peers: [10.0.0.0/8], user: {header: X-User}}\n")
    code = "import sys; from sluicegate.rules.load import load_rules; print(load_rules(sys.stdin.read(), 'f').digest)"
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    done = subprocess.run(
        [sys.executable, "-c", code], input=text, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == digest(text)
    assert re.fullmatch(r"[0-9a-f]{16}", digest(text))
