from __future__ import annotations

import pytest

from sluicegate.algorithms import SlidingWindow, TokenBucket
from sluicegate.algorithms.spec import OnChange
from sluicegate.bounds import PROBLEMS_MAX, RULES_MAX
from sluicegate.errors import ConfigurationError
from sluicegate.rules.load import check_rules, load_rules
from sluicegate.rules.model import CostFrom, FailurePolicy, Match, Mode, OnMissing, Penalty, Per, Scope, Tiers
from sluicegate.rules.problems import RulesInvalid

EXAMPLE = """\
version: 1
identity:
  trusted_peers: [127.0.0.0/8]
  api_key: {header: X-API-Key}
  user: {header: X-User-Id}
  tier: {header: X-Tier}
  ip: {ipv6_prefix: 64, ipv4_prefix: 32}
subjects: {"api_key:k1": paid}
tiers: {default: free, names: [free, paid]}
rules:
  - name: everything
    scope: global
    quota: 50000/second
  - name: login
    match: {methods: [POST], path: /login}
    per: [ip]
    quota: 5/minute
    algorithm: sliding_window
    strict: true
    on_store_failure: closed
  - name: api
    match: {path: /api/**}
    per: {first_of: [api_key, user, ip]}
    quota: {free: 100/minute, paid: 1000/minute}
  - name: shorten
    match: {methods: [POST], path: "/api/v1/shorten"}
    per: [user, endpoint]
    quota: {capacity: 100, refill_per_sec: 10}
"""
S = 1_000_000


def test_the_example_file_means_what_it_says():
    """The file that the documentation opens with has no problems and reads as its comments say."""
    ruleset, problems = check_rules(EXAMPLE, "rules.yaml")
    assert problems == ()
    assert (ruleset.source, ruleset.version) == ("rules.yaml", 1)
    assert ruleset.tiers == Tiers(("free", "paid"), "free")
    assert dict(ruleset.subjects) == {"api_key:k1": "paid"}
    assert ruleset.identity.trusted_peers.contains("127.0.0.1")
    everything, login, api, shorten = ruleset.rules
    assert (everything.scope, everything.per, everything.match) == (Scope.GLOBAL, Per(), Match())
    assert everything.quotas[None].specs == (TokenBucket(50_000, 50_000, S),)
    assert (login.scope, login.per, login.line) == (Scope.IDENTITY, Per(("ip",)), 14)
    assert login.match == Match(methods=("POST",), path=("/login",))
    assert login.quotas[None].specs == (SlidingWindow(5, 60 * S, 6),)
    assert login.on_store_failure is FailurePolicy.CLOSED
    assert api.per == Per(("api_key", "user", "ip"), first_of=True)
    free, paid = TokenBucket(100, 100, 60 * S), TokenBucket(1000, 1000, 60 * S)
    assert {tier: quota.specs for tier, quota in api.quotas.items()} == {
        "free": (free,),
        "paid": (paid,),
        None: (free,),
    }
    assert shorten.scope is Scope.IDENTITY
    assert shorten.quotas[None].specs == (TokenBucket(100, 10, S),)


def test_every_field_is_read():
    """No field of a rule is dropped between the file and the model."""
    text = """\
version: 1
tiers: {default: free, names: [free, paid]}
rules:
  - name: all-fields_1.0
    scope: endpoint
    match:
      methods: [get, POST]
      path: ["/a/{id}", /b/**]
      host: [API.example.com, "*.example.org", "[::1]"]
      headers: {X-Debug: , X-Kind: "5"}
      tier: paid
      tenant: [t1, 42]
      user: u1
      ip: [10.0.0.0/8, "2001:db8::/32", 192.0.2.1]
      authenticated: yes
      domain: edge
      descriptors: {remote_address: 203.0.113.9, any: }
      not: {path: /b/free, methods: [PUT]}
    per: [user, header.X-Device, descriptor.Key, attrs.shop]
    on_missing: ip
    quota: 10/minute
    cost: {header: X-Cost, min: 2, max: 9, default: 3}
    mode: shadow
    on_store_failure: local
    precision: exact
    denied_counts: on
    on_change: scale
    respond: 429
    fallback_start: full
    fallback_share: even
"""
    ruleset, problems = check_rules(text, "f")
    assert problems == ()
    (rule,) = ruleset.rules
    assert rule.name == "all-fields_1.0"
    assert rule.scope is Scope.ENDPOINT
    assert rule.match == Match(
        methods=("GET", "POST"),
        path=("/a/{id}", "/b/**"),
        host=("api.example.com", "*.example.org", "[::1]"),
        headers={"x-debug": None, "x-kind": "5"},
        tier=("paid",),
        tenant=("t1", "42"),
        user=("u1",),
        ip=("10.0.0.0/8", "2001:db8::/32", "192.0.2.1/32"),
        authenticated=True,
        domain=("edge",),
        descriptors={"remote_address": "203.0.113.9", "any": None},
        negate=Match(methods=("PUT",), path=("/b/free",)),
    )
    assert rule.per == Per(("user", "header.x-device", "descriptor.Key", "attrs.shop"), False, OnMissing.IP)
    assert rule.cost == CostFrom("x-cost", 2, 9, 3)
    assert (rule.mode, rule.denied_counts, rule.on_change) == (Mode.SHADOW, True, OnChange.SCALE)


def one(fields: str) -> str:
    """A file of one rule with these fields beside its name."""
    return f"version: 1\nrules:\n  - name: a\n    {fields}\n"


@pytest.mark.parametrize(
    "word, mode", [("off", Mode.OFF), ("false", Mode.OFF), ("'off'", Mode.OFF), ("enforce", Mode.ENFORCE)]
)
def test_mode_off_is_not_a_boolean(word, mode):
    """``mode: off`` switches a rule off, although YAML 1.1 reads the word as false."""
    assert (
        load_rules(one(f"{{quota: 5/s, mode: {word}}}".strip("{}").replace(", ", "\n    ")), "f").rules[0].mode is mode
    )


SCOPES = [
    ("quota: 5/s", Scope.GLOBAL),
    ("quota: 5/s\n    match: {path: /a}", Scope.ENDPOINT),
    ("quota: 5/s\n    match: {path: /a}\n    per: [endpoint]", Scope.ENDPOINT),
    ("quota: 5/s\n    per: [ip]", Scope.IDENTITY),
    ("quota: 5/s\n    per: [host]", Scope.GLOBAL),
    ("quota: 5/s\n    per: [attrs.shop]", Scope.IDENTITY),
    ("quota: 5/s\n    match: {path: /a}\n    per: {first_of: [user, ip]}", Scope.IDENTITY),
    ("quota: 5/s\n    match: {path: /a}\n    scope: global", Scope.GLOBAL),
    ("quota: 5/s\n    per: [ip]\n    scope: endpoint", Scope.ENDPOINT),
]


@pytest.mark.parametrize("fields, scope", SCOPES)
def test_scope_is_derived_where_it_is_absent(fields, scope):
    """A client in ``per`` makes it identity, else a match makes it endpoint, else it is global."""
    assert load_rules(one(fields), "f").rules[0].scope is scope


def test_one_dimension_needs_no_list():
    """``per: ip`` is ``per: [ip]``."""
    assert load_rules(one("quota: 5/s\n    per: ip"), "f").rules[0].per == Per(("ip",))


def test_a_tier_without_a_quota_takes_the_default(lines_of):
    """A named tier that the mapping leaves out is limited as the default tier is, and the check says so."""
    text = "version: 1\ntiers: {default: a, names: [a, b]}\nrules:\n  - {name: x, quota: {a: 5/s}}\n"
    assert lines_of(text) == ["4: warning: rule 'x': quota: has no quota for tier 'b', which takes that of 'a'"]
    assert load_rules(text, "f").rules[0].quotas[None].text == "5/s"


def test_json_is_read_too():
    """A rules file may be JSON, which is YAML."""
    text = (
        '{"version": 1, "rules": [{"name": "login", "match": {"path": "/login"}, "per": ["ip"], "quota": "5/minute"}]}'
    )
    assert load_rules(text, "f").rules[0].per == Per(("ip",))


def test_penalties_are_read():
    """A penalty says after how many refusals, within what time, and for how long."""
    rule = load_rules(one("quota: 5/s\n    per: [ip]\n    penalty: {after: 20 refusals/1m, block: 15m}"), "f").rules[0]
    assert rule.penalty == Penalty(20, 60 * S, 900 * S)


def test_load_raises_with_all_problems():
    """``load_rules`` gives every problem in one error, and its message is one line for a log."""
    with pytest.raises(RulesInvalid) as caught:
        load_rules("version: 1\nrules:\n" + "  - {name: 'a b', quota: 5/x}\n" * 4, "f.yaml")
    assert len(caught.value.problems) == 8
    assert isinstance(caught.value, ConfigurationError)
    assert str(caught.value).endswith("; and 3 more")
    assert "\n" not in str(caught.value)


def test_load_gives_the_revision():
    """``version`` is the revision of the set, not the format version in the file."""
    assert load_rules(EXAMPLE, "f", version=7).version == 7


def test_a_duplicate_name_is_visible():
    """T109: a rule defined twice refuses the file and names both lines."""
    _, problems = check_rules("version: 1\nrules: [{name: a, quota: 5/s}, {name: a, quota: 6/s}]", "f")
    assert [str(problem) for problem in problems] == [
        "f:2: rule 'a': name: another rule on line 2 has this name; a name is a rule's identity"
    ]


def test_the_number_of_problems_is_bounded():
    """A file with a thousand faults reports the first ones and counts the rest."""
    text = "version: 1\nrules:\n" + "".join(f"  - {{name: r{n}, quota: x}}\n" for n in range(1_000))
    _, problems = check_rules(text, "f")
    assert len(problems) == PROBLEMS_MAX + 1
    assert str(problems[-1]) == f"f: {1_000 - PROBLEMS_MAX} more problems are not shown"


def test_the_number_of_rules_is_bounded(lines_of):
    """More rules than the bound are refused as a whole."""
    text = "version: 1\nrules:\n" + "".join(f"- {{name: r{n}, quota: 5/s}}\n" for n in range(RULES_MAX + 1))
    assert lines_of(text) == [f"2: rules: has {RULES_MAX + 1} rules; at most {RULES_MAX} are allowed"]


@pytest.mark.parametrize("rules", ["", "rules: []\n"])
def test_a_file_may_say_only_who_a_client_is(rules):
    """Where all limits stand beside routes a file has an identity and no rules; that it limits nothing is a warning, and an error without one."""
    text = "version: 1\nidentity: {trusted_peers: [10.0.0.0/8]}\n" + rules
    ruleset, problems = check_rules(text, "rules.yaml")
    assert (ruleset.rules, [problem.severity for problem in problems]) == ((), ["warning"])
    assert "limits nothing by itself" in problems[0].message
    assert load_rules(text, "rules.yaml").identity.trusted_peers
    for bad in (f"version: 1\n{rules}", f"version: 1\nidentity: {{}}\n{rules}"):
        ruleset, problems = check_rules(bad, "rules.yaml")
        assert ruleset is None
        assert "would limit nothing" in problems[-1].message
