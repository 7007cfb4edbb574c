"""Which rules apply: every condition with its near misses, order, and agreement with a naive matcher."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicegate.errors import InvalidRequest
from sluicegate.rules.conditions import canonical_host, canonical_method
from sluicegate.rules.facts import Facts
from sluicegate.rules.match import Matcher, in_order, see
from sluicegate.rules.model import Match, Rule, Scope
from sluicegate.rules.paths import readings

Applying = Callable[[Sequence[Match], Facts], list[int]]

CONDITIONS = [
    # match, facts it applies to, facts it nearly applies to
    (Match(), [Facts(), Facts(path="/x", method="GET")], []),
    (Match(methods=("POST",)), [Facts(method="POST"), Facts(method="post", path="/")], [Facts(), Facts(method="PUT"), Facts(method="POSTS")]),
    (Match(methods=("GET",)), [Facts(method="GET")], [Facts(method="HEAD")]),
    (Match(path=("/login",)), [Facts(path="/login"), Facts(path="//LOGIN/?x")], [Facts(), Facts(path="/"), Facts(route="/login")]),
    (Match(path=("/a", "/b/*")), [Facts(path="/a"), Facts(path="/b/1")], [Facts(path="/b"), Facts(path="/c")]),
    (Match(methods=("GET",), path=("/a",)), [Facts(method="GET", path="/a")], [Facts(path="/a"), Facts(method="GET"), Facts(method="PUT", path="/a")]),
    (Match(host=("Example.com",)), [Facts(host="example.com"), Facts(host="EXAMPLE.com.:8080")], [Facts(), Facts(host=""), Facts(host="www.example.com"), Facts(host="example.com.evil.test")]),
    (Match(host=("*.example.com",)), [Facts(host="a.example.com"), Facts(host="a.b.example.com:1")], [Facts(host="example.com"), Facts(host="aexample.com")]),
    (Match(host=("[::1]",)), [Facts(host="[::1]"), Facts(host="[::1]:80")], [Facts(host="[::2]:80"), Facts(host="::1")]),
    (Match(headers={"X-Plan": "pro"}), [Facts(headers={"x-plan": "pro"})], [Facts(), Facts(headers={}), Facts(headers={"x-plan": "Pro"}), Facts(headers={"plan": "pro"})]),
    (Match(headers={"x-debug": None}), [Facts(headers={"x-debug": ""}), Facts(headers={"x-debug": "1"})], [Facts(), Facts(headers={"debug": "1"})]),
    (Match(tier=("paid",)), [Facts(tier="paid")], [Facts(), Facts(tier="free")]),
    (Match(tenant=("acme", "umbra")), [Facts(tenant="acme"), Facts(tenant="umbra")], [Facts(), Facts(tenant="ACME"), Facts(user="acme")]),
    (Match(user=("1",)), [Facts(user="1")], [Facts(), Facts(user="01"), Facts(api_key="1")]),
    (Match(ip=("10.0.0.0/8", "2001:db8::/32")), [Facts(ip="10.1.2.3"), Facts(ip="::ffff:10.1.2.3"), Facts(ip="[2001:DB8::1]:443")], [Facts(), Facts(ip="11.0.0.1"), Facts(ip="2001:db9::1")]),
    (Match(authenticated=True), [Facts(user="1"), Facts(api_key="k"), Facts(tenant="t")], [Facts(), Facts(ip="10.0.0.1"), Facts(user="")]),
    (Match(authenticated=False), [Facts(), Facts(ip="10.0.0.1"), Facts(user="")], [Facts(user="1")]),
    (Match(domain=("edge",)), [Facts(domain="edge")], [Facts(), Facts(domain="edges")]),
    (Match(descriptors={"plan": "pro", "any": None}), [Facts(descriptors={"plan": "pro", "any": "1"})], [Facts(), Facts(descriptors={"plan": "pro"}), Facts(descriptors={"any": "1", "plan": "x"})]),
    (Match(negate=Match(path=("/health",))), [Facts(), Facts(path="/x"), Facts(path="/health/x")], [Facts(path="/health"), Facts(path="/Health/")]),
    (Match(path=("/api/**",), negate=Match(user=("root",))), [Facts(path="/api/x"), Facts(path="/api", user="u")], [Facts(path="/api", user="root"), Facts(path="/x")]),
    (Match(negate=Match(path=("/api/**",), user=("root",))), [Facts(path="/api"), Facts(user="root"), Facts(path="/x", user="root")], [Facts(path="/api", user="root")]),
    (Match(negate=Match(user=("a",), negate=Match(path=("/x",)))), [Facts(), Facts(user="a", path="/x")], [Facts(user="a"), Facts(user="a", path="/y")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("match", "hits", "misses"), CONDITIONS, ids=lambda value: repr(value)[:60] if isinstance(value, Match) else ""
)
def test_condition_and_its_near_misses(
    match: Match, hits: list[Facts], misses: list[Facts], applying: Applying
) -> None:
    """Each condition holds for these facts and not for those that come close; unknown facts never satisfy one."""
    assert [facts for facts in hits if applying([match], facts) != [0]] == []
    assert [facts for facts in misses if applying([match], facts) != []] == []


def test_every_matching_rule_applies(applying: Applying) -> None:
    """No pattern is more special than another: exact, template and catch-all rules all apply (T20)."""
    matches = [
        Match(),
        Match(path=("/**",)),
        Match(path=("/users/{id}",)),
        Match(path=("/users/me",)),
        Match(path=("/x",)),
    ]
    assert applying(matches, Facts(path="/users/me")) == [0, 1, 2, 3]


def test_rule_without_conditions_catches_what_nothing_else_does(applying: Applying) -> None:
    """A path no pattern knows, and a request without a path, still meet the rules without conditions (P71)."""
    matches = [Match(path=("/users/{id}",)), Match()]
    assert applying(matches, Facts(path="/never/heard/of")) == [1]
    assert applying(matches, Facts()) == [1]


def test_order_is_scope_then_file() -> None:
    """Global rules come first, then endpoint, then identity rules, each in the order of the file."""
    scopes = [Scope.IDENTITY, Scope.ENDPOINT, Scope.GLOBAL, Scope.IDENTITY, Scope.GLOBAL]
    rules = [Rule(str(index), scope, Match(), per=None, quotas={}) for index, scope in enumerate(scopes)]  # type: ignore[arg-type]
    assert [rule.name for rule in in_order(rules)] == ["2", "4", "1", "0", "3"]


def test_exclusion_needs_every_reading(applying: Applying) -> None:
    """A path that one server reads as /login and another as /health is not taken out of the limit by ``not: /health``."""
    login = Match(negate=Match(path=("/health",)))
    assert applying([login], Facts(path="/health")) == []
    assert applying([login], Facts(path="/health/")) == []
    assert applying([login], Facts(path="/login%2F..%2Fhealth")) == [0]
    assert applying([login], Facts(path="/health;x")) == [0]


def test_pattern_by_which_a_rule_matched_is_its_first(make_rule: Callable[..., Rule]) -> None:
    """Where several patterns of a rule match, the first in its list is named; without patterns it is ``/**``."""
    rules = [make_rule("a", Match(path=("/x/{id}", "/**", "/x/1"))), make_rule("b", Match())]
    matcher = Matcher(rules, str)
    assert [one.pattern for one in matcher.candidates(see("GET", "/x/1", None, None))] == ["/x/{id}", "/**"]
    assert [one.pattern for one in matcher.candidates(see("GET", "/y", None, None))] == ["/**", "/**"]


def test_path_too_long_is_the_callers_error() -> None:
    """A path above the bound raises InvalidRequest naming the field; it is never an unmatched path."""
    with pytest.raises(InvalidRequest) as caught:
        see("GET", "/" * 5_000, None, None)
    assert caught.value.field == "facts.path"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("Example.COM", "example.com"),
        ("example.com:8080", "example.com"),
        ("example.com:", "example.com"),
        (" example.com. ", "example.com"),
        ("example.com.:80", "example.com"),
        ("[2001:DB8::1]:443", "[2001:db8::1]"),
        ("[2001:db8::1]", "[2001:db8::1]"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("example.com:x", "example.com:x"),
    ],
)
def test_canonical_host(host: str, expected: str) -> None:
    """A host loses case, port and final dot, and nothing else."""
    assert canonical_host(host) == expected


def test_invented_methods_are_one() -> None:
    """Methods no standard names are one dimension value, or each would bring a full quota."""
    assert [canonical_method(name) for name in ("get", "PURGE", "GEX", "X1", "X2")] == [
        "GET",
        "PURGE",
        "OTHER",
        "OTHER",
        "OTHER",
    ]


# Agreement with a matcher that tries every rule and knows nothing of tries, labels or memos.

PART = st.sampled_from(["a", "b", "ab", "{x}", "*", "a*", "*b", "a*b", "*a*", "ab*", "{x}b", "**"])
PATTERN = (
    st.lists(PART, max_size=4).filter(lambda parts: parts.count("**") <= 1).map(lambda parts: "/" + "/".join(parts))
)
PATHS = st.one_of(
    st.lists(st.sampled_from(["a", "b", "ab", "aab", "c"]), max_size=5).map(lambda parts: "/" + "/".join(parts)),
    st.text(st.sampled_from("ab/.%2fe;"), max_size=12).map(lambda text: "/" + text),
)
VALUES = st.sampled_from([f"v{index}" for index in range(10)])


def some(values: st.SearchStrategy[str], most: int = 2) -> st.SearchStrategy[tuple[str, ...]]:
    """A condition list, empty half the time."""
    return st.one_of(st.just(()), st.lists(values, min_size=1, max_size=most).map(tuple))


PLAIN_MATCH = st.builds(
    Match,
    methods=some(st.sampled_from(["GET", "POST"])),
    path=some(PATTERN),
    host=some(st.sampled_from(["a.test", "b.test", "*.test"])),
    tenant=some(VALUES),
    domain=some(VALUES),
    descriptors=st.dictionaries(st.sampled_from(["k"]), st.one_of(st.none(), VALUES), max_size=1),
    headers=st.dictionaries(st.sampled_from(["h"]), st.one_of(st.none(), VALUES), max_size=1),
)
MATCHES = st.builds(
    lambda match, negate: Match(
        **{name: getattr(match, name) for name in match.__slots__ if name != "negate"}, negate=negate
    ),
    PLAIN_MATCH,
    st.one_of(st.none(), PLAIN_MATCH),
)
FACTS = st.builds(
    Facts,
    method=st.sampled_from([None, "GET", "POST"]),
    path=st.one_of(st.none(), PATHS),
    host=st.sampled_from([None, "a.test", "b.test", "x.a.test"]),
    tenant=st.one_of(st.none(), VALUES),
    domain=st.one_of(st.none(), VALUES),
    descriptors=st.one_of(st.none(), st.dictionaries(st.just("k"), VALUES)),
    headers=st.one_of(st.none(), st.dictionaries(st.just("h"), VALUES)),
)


def pattern_regex(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression on a reading without its trailing slash."""
    regex = ""
    for part in pattern.strip("/").split("/") if pattern != "/" else []:
        if part == "**":
            regex += "(/[^/]+)*"
        elif part in ("*", "{x}"):
            regex += "/[^/]+"
        else:
            regex += "/" + re.escape(part).replace(r"\*", "[^/]*").replace(r"\{x\}", "[^/]+")
    return re.compile(regex)


def naive(match: Match, facts: Facts, *, every_reading: bool = False) -> bool:
    """Conditions one after the other, as the documentation says them."""
    read = [] if facts.path is None else [reading.rstrip("/") for reading in readings(facts.path)]
    hit = [any(pattern_regex(text).fullmatch(reading) for text in match.path) for reading in read]
    host_holds = facts.host is not None and any(
        facts.host.endswith(host[1:]) if host.startswith("*") else facts.host == host for host in match.host
    )
    entries = ((match.headers, facts.headers or {}), (match.descriptors, facts.descriptors or {}))
    return (
        (not match.methods or facts.method in match.methods)
        and (not match.path or (bool(hit) and (all(hit) if every_reading else any(hit))))
        and (not match.host or host_holds)
        and (not match.tenant or facts.tenant in match.tenant)
        and (not match.domain or facts.domain in match.domain)
        and all(
            name in given and (value is None or given[name] == value)
            for wanted, given in entries
            for name, value in wanted.items()
        )
        and (match.negate is None or not naive(match.negate, facts, every_reading=not every_reading))
    )


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(MATCHES, min_size=1, max_size=25), st.lists(FACTS, min_size=1, max_size=5))
def test_matcher_agrees_with_a_naive_one(applying: Applying, matches: list[Match], requests: list[Facts]) -> None:
    """Trie, labels and guards find exactly the rules that trying every condition of every rule finds."""
    for facts in requests:
        assert applying(matches, facts) == [index for index, match in enumerate(matches) if naive(match, facts)]


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PATTERN, min_size=1, max_size=12), PATHS)
def test_trie_agrees_with_regular_expressions(applying: Applying, patterns: list[str], path: str) -> None:
    """The path trie finds exactly the patterns whose regular expressions match some reading of the path."""
    expected = [index for index, pattern in enumerate(patterns) if naive(Match(path=(pattern,)), Facts(path=path))]
    assert applying([Match(path=(pattern,)) for pattern in patterns], Facts(path=path)) == expected
