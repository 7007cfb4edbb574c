"""Checks between rules, and of rules against the identity settings."""

from __future__ import annotations

import pytest

from sluicegate.bounds import LIMITS_PER_REQUEST_MAX
from sluicegate.rules.load import check_rules

IDENTITY = """\
identity:
  trusted_peers: [{peers}]
  user: {{header: X-User-Id}}
  api_key: {{header: X-Api-Key}}
"""


def file(*rules: str, head: str = "") -> str:
    return f"version: 1\n{head}rules:\n" + "".join(f"- {{{rule}}}\n" for rule in rules)


TWO_RULES = [
    # rules, from line 3 on, and what is said
    (["name: a, quota: 10/minute", "name: b, quota: 5/minute"], [
        "3: warning: rule 'a': quota: has no effect beside rule 'b' on line 4, which has the same match and per and a smaller quota; both are charged and the smaller decides"]),
    (["name: a, quota: 5/minute", "name: b, quota: 5/m"], [
        "4: warning: rule 'b': quota: says the same as rule 'a' on line 3; both are charged, one is enough"]),
    (["name: a, quota: 10/second", "name: b, quota: 100/hour"], []),
    (["name: a, quota: 10/second, mode: shadow", "name: b, quota: 20/second"], []),
    (["name: a, quota: 10/second, per: [ip]", "name: b, quota: 20/second, per: [user]"], []),
    (["name: a, quota: 10/second, match: {path: /a}", "name: b, quota: 20/second, match: {path: /b}"], []),
    (["name: a, quota: 10/second, cost: 2", "name: b, quota: 20/second"], []),
    (["name: a, quota: 10/second, algorithm: fixed_window", "name: b, quota: 20/second"], []),
    (["name: a, quota: 10/minute, algorithm: fixed_window", "name: b, quota: 9/minute, algorithm: fixed_window"], [
        "3: warning: rule 'a': quota: has no effect beside rule 'b' on line 4, which has the same match and per and a smaller quota; both are charged and the smaller decides"]),
    (["name: a, quota: unlimited", "name: b, quota: 9/minute"], []),
    (["name: a, quota: '5/second; 10/second'"], ["3: warning: rule 'a': quota: 10/second has no effect beside 5/second"]),
    (["name: a, quota: '1/second; 100/hour'"], []),
    (["name: a, quota: 9/s, per: [ip, endpoint]"], [
        "3: warning: rule 'a': per: without match.path, all paths of a method are one endpoint wherever the route template is not known"]),
]  # fmt: skip


@pytest.mark.parametrize("rules, lines", TWO_RULES, ids=[" | ".join(row[0])[:70] for row in TWO_RULES])
def test_rules_that_make_others_pointless(rules, lines, lines_of):
    """T108: of two rules that differ only in their numbers the smaller decides, and the check says so."""
    assert lines_of(file(*rules)) == lines


def test_pointless_for_every_tier_or_not_at_all(lines_of):
    """A rule that is smaller for one tier only is not pointless."""
    head = "tiers: {default: free, names: [free, paid]}\n"
    one, other = "name: a, quota: {free: 10/s, paid: 20/s}", "name: b, quota: {free: 5/s, paid: 30/s}"
    assert lines_of(file(one, other, head=head)) == []
    assert len(lines_of(file(one, "name: b, quota: 5/s", head=head))) == 1
    assert lines_of(file(one, "name: b, quota: {free: 5/s, paid: unlimited}", head=head)) == []


LEAKY = "algorithm: leaky_bucket, max_delay_ms: 60000"
LEAKY_PAIRS = [
    ("match: {path: /a/**}", "match: {path: /a/b}", True),
    ("match: {path: /a}", "match: {path: /b}", False),
    ("match: {path: '/{x}/items'}", "match: {path: /shop/*}", True),
    ("match: {path: /v1-*}", "match: {path: /v2-*}", False),
    ("match: {path: /a, methods: [GET]}", "match: {path: /a, methods: [POST]}", False),
    ("match: {host: a.example.com}", "match: {host: '*.example.com'}", True),
    ("match: {host: a.example.com}", "match: {host: b.example.com}", False),
    ("match: {ip: 10.0.0.0/8}", "match: {ip: 10.1.0.0/16}", True),
    ("match: {ip: 10.0.0.0/8}", "match: {ip: 192.168.0.0/16}", False),
    ("match: {ip: 10.0.0.0/8}", "match: {ip: 2001:db8::/32}", False),
    ("match: {headers: {X-A: '1'}}", "match: {headers: {X-A: '2'}}", False),
    ("match: {headers: {X-A: '1'}}", "match: {headers: {X-A: }}", True),
    ("match: {authenticated: true}", "match: {authenticated: false}", False),
    ("match: {path: /a/**}", "match: {not: {path: /a/**}}", False),
    ("match: {path: /a/**}", "match: {not: {path: /a/b}}", True),
    ("match: {user: [u1]}", "match: {user: [u2]}", False),
    ("match: {path: /a}, mode: shadow", "match: {path: /a}", False),
]


@pytest.mark.parametrize("one, other, both", LEAKY_PAIRS)
def test_two_leaky_rules_for_one_request(one, other, both, lines_of):
    """Only one leaky rule can hold a request; two that may match the same one are pointed out, and only those."""
    found = lines_of(file(f"name: a, quota: 5/s, {LEAKY}, {one}", f"name: b, quota: 7/s burst 3, {LEAKY}, {other}"))
    expected = ["4: warning: rule 'b': match: can hold the same request as rule 'a' on line 3; only one should"]
    assert found == (expected if both else [])


def test_a_queue_longer_than_its_delay_is_pointed_out(lines_of):
    """A leaky bucket whose last places wait longer than max_delay_ms never fills them."""
    assert lines_of(file("name: a, quota: 10/minute, algorithm: leaky_bucket")) == [
        "3: warning: rule 'a': quota: only 1 of the 10 places in the queue can be used: the last waits 54000 ms and max_delay_ms is 1000"
    ]
    assert lines_of(file("name: a, quota: 10/minute, algorithm: leaky_bucket, nodelay: true")) == []
    assert lines_of(file("name: a, quota: 10/second burst 11, algorithm: leaky_bucket")) == []


def test_the_limits_of_one_request_are_bounded(lines_of):
    """A request under more limits than the bound refuses the file; rules that exclude one another do not count."""
    many = LIMITS_PER_REQUEST_MAX + 1
    (line,) = lines_of(
        file(*(f"name: r{n}, quota: {n + 1}/s burst {2 * many - n}, match: {{path: '/a/**'}}" for n in range(many)))
    )
    assert line == (
        f"3: rule 'r0': match: a request such as GET /a is under {many} limits; at most {LIMITS_PER_REQUEST_MAX} may apply to one request"
    )
    assert lines_of(file(*(f"name: r{n}, quota: 5/s, match: {{path: /{n}}}" for n in range(many)))) == []
    assert lines_of(file(*(f"name: r{n}, quota: 5/s, match: {{user: u{n}}}" for n in range(many)))) == []
    (line,) = lines_of(
        file(
            *(
                f"name: r{n}, quota: 5/s, match: {{user: [u, u{n}], path: '/a/{{x}}', ip: 10.0.0.0/8}}"
                for n in range(many)
            )
        )
    )
    assert line.startswith("3: rule 'r0': match: a request such as GET /a/x is under 65 limits")


def test_a_warning_does_not_refuse_the_file():
    """With warnings only, the rule set is usable."""
    ruleset, problems = check_rules(file("name: a, quota: 10/minute", "name: b, quota: 5/minute"), "f")
    assert [problem.severity for problem in problems] == ["warning"]
    assert len(ruleset.rules) == 2


def test_rules_with_errors_take_no_part(lines_of):
    """A rule that could not be read fully is not compared: its match might have been another."""
    assert lines_of(file("name: a, quota: 10/minute, match: {path: x}", "name: b, quota: 5/minute")) == [
        "3: rule 'a': match.path: a path pattern begins with '/', got 'x'; did you mean '/x'?"
    ]


BY_KEY = "name: a, quota: 5/s, per: {first_of: [api_key, ip]}"
STRANGERS = "(header 'x-api-key' is believed from strangers, because trusted_peers holds 0.0.0.0/0)"
UNVERIFIED = [
    ("127.0.0.0/8", [BY_KEY], []),
    ("0.0.0.0/0", [BY_KEY], [
        f"7: warning: rule 'a': per: anybody can choose api_key and so start a new counter at will {STRANGERS}; no rule per: [ip] covers the same requests"]),
    ("0.0.0.0/0", [BY_KEY, "name: b, quota: 9/s, per: [ip]"], []),
    ("0.0.0.0/0", [BY_KEY, "name: b, quota: 9/s, per: [ip, endpoint], match: {path: /**}"], []),
    ("0.0.0.0/0", [BY_KEY, "name: b, quota: 9/s, per: [ip], mode: shadow"], None),
    ("0.0.0.0/0", [BY_KEY, "name: b, quota: unlimited, per: [ip]"], None),
    ("0.0.0.0/0", [BY_KEY, "name: b, quota: 9/s, per: [ip], match: {path: /api/**}"], None),
    ("0.0.0.0/0", [BY_KEY + ", match: {path: /api/v1}", "name: b, quota: 9/s, per: [ip], match: {path: /api/**}"], []),
    ("0.0.0.0/0", [BY_KEY, "name: b, quota: 9/s, per: {first_of: [user, ip]}"], None),
    ("0.0.0.0/0", ["name: a, quota: 5/s, match: {authenticated: false}"], [
        "7: warning: rule 'a': match: anybody can choose user and so whether this rule applies (header 'x-user-id' is believed from strangers, because trusted_peers holds 0.0.0.0/0)"]),
    ("127.0.0.0/8", ["name: a, quota: 5/s, per: [header.X-Device]"], [
        "7: warning: rule 'a': per: anybody can choose header.x-device and so start a new counter at will (a header is whatever the client sends); no rule per: [ip] covers the same requests"]),
    ("127.0.0.0/8", ["name: a, quota: 5/s, per: [tenant]"], [
        "7: warning: rule 'a': per: identity.tenant is not set, so only callers that pass 'tenant' themselves are limited by this rule; a gateway skips it"]),
    ("127.0.0.0/8", ["name: a, quota: 5/s, per: [tenant], on_missing: deny"], []),
    ("127.0.0.0/8", ["name: a, quota: 5/s, per: {first_of: [tenant, ip]}"], []),
]  # fmt: skip


@pytest.mark.parametrize(
    "peers, rules, lines", UNVERIFIED, ids=[f"{row[0]} {' | '.join(row[1])}"[:70] for row in UNVERIFIED]
)
def test_whose_word_decides(peers, rules, lines, lines_of):
    """An identity that strangers choose is pointed out unless an enforced rule limits their addresses all the same."""
    head = IDENTITY.format(peers=peers)
    warned = [
        line for line in lines_of(file(*rules, head=head)) if "anybody can choose" in line or "identity.tenant" in line
    ]
    if lines is None:
        assert len(warned) >= 1
        assert "anybody can choose" in warned[0]
    else:
        assert warned == lines


def test_headers_nobody_may_set_are_pointed_out(lines_of):
    """With no trusted peer an identity header is never believed, and the check says where."""
    assert lines_of(file("name: a, quota: 5/s, per: [ip]", head="identity:\n  user: {header: X-User-Id}\n")) == [
        "3: warning: identity.user.header: header 'x-user-id' is ignored from everybody, because trusted_peers is empty"
    ]


def test_a_tier_that_strangers_choose_is_pointed_out(lines_of):
    """A tier header believed from anywhere is an upgrade for the asking."""
    head = "identity:\n  trusted_peers: [0.0.0.0/0]\n  tier: {header: X-Tier}\n"
    assert lines_of(file("name: a, quota: 5/s, per: [ip]", head=head)) == [
        "4: warning: identity.tier.header: anybody can choose a tier: header 'x-tier' is believed from strangers, because trusted_peers holds 0.0.0.0/0"
    ]


def test_tiers_that_nothing_names_are_pointed_out(lines_of):
    """Tiers are of no use where neither a source nor a subject can give a request one."""
    head = "identity: {trusted_peers: [127.0.0.0/8]}\ntiers: {default: free, names: [free]}\n"
    assert lines_of(file("name: a, quota: 5/s, per: [ip]", head=head)) == [
        "3: warning: tiers: nothing says a request's tier: identity.tier is not set and there is no identity a subject could name"
    ]


def test_subjects_that_nothing_identifies_are_pointed_out(lines_of):
    """A subject of a kind without a source gives no request at a gateway its tier; without identity settings nothing is said."""
    subjects = 'subjects: {"api_key:k1": free, "user:1": free}\ntiers: {default: free, names: [free]}\n'
    head = "identity: {trusted_peers: [127.0.0.0/8], user: {header: X-User-Id}}\n"
    assert lines_of(file("name: a, quota: 5/s, per: [ip]", head=head + subjects)) == [
        "3: warning: subjects: identity.api_key is not set, so api_key subjects count only for callers that pass 'api_key' themselves"
    ]
    assert lines_of(file("name: a, quota: 5/s, per: [ip]", head=subjects)) == []


@pytest.mark.parametrize("per", ["", "per: [endpoint], ", "per: [header.X-Client], ", "per: [attrs.job], "])
def test_a_penalty_needs_a_client_that_a_list_can_name(per, lines_of):
    """A penalty of a rule that counts nobody by user, API key, address or tenant could block nobody, so it is an error."""
    assert lines_of(file(f"name: a, quota: 5/s, {per}penalty: {{after: 2 refusals/1m, block: 15m}}")) == [
        "3: rule 'a': penalty: blocks clients, but per names none that a list can hold (api_key, ip, tenant, user)"
    ]


@pytest.mark.parametrize(
    "per", ["[user, endpoint]", "{first_of: [header.X-Client, ip]}", "[header.X-Client], on_missing: ip"]
)
def test_a_penalty_of_a_rule_that_counts_clients_is_fine(per, lines_of):
    """One of the four dimensions is enough, and so is the address that stands in for what is missing."""
    lines = lines_of(file(f"name: a, quota: 5/s, per: {per}, penalty: {{after: 2 refusals/1m, block: 15m}}"))
    assert not [line for line in lines if "penalty" in line]


def test_a_cost_that_may_not_fit_is_pointed_out(lines_of):
    """A header that may ask for more than the capacity is a warning: such requests never pass."""
    assert lines_of(file("name: a, quota: 5/s, cost: {header: X-Cost, max: 9}")) == [
        "3: warning: rule 'a': cost: max 9 is above the capacity (5): such a request never passes"
    ]
