from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.rules.facts import Facts
from sluicegate.rules.match import Matcher, see
from sluicegate.rules.model import FailurePolicy, Match, Per, Rule, Scope
from sluicegate.rules.overlap import covers, may_meet

SEGMENTS = st.sampled_from(["a", "b", "ab", "{x}", "*", "a*", "*b", "a{x}b"])
PATTERNS = st.builds(
    lambda head, rest, tail: "/" + "/".join([*head, *rest, *tail]),
    st.lists(SEGMENTS, max_size=2),
    st.sampled_from([[], ["**"]]),
    st.lists(SEGMENTS, max_size=2),
)
HOSTS = st.sampled_from(["x.org", "a.x.org", "*.x.org", "*"])
NETWORKS = st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "192.168.0.0/16", "2001:db8::/32"])
ENTRIES = st.dictionaries(st.sampled_from(["h", "k"]), st.sampled_from([None, "1", "2"]), max_size=2)


def matches(negate):
    return st.builds(
        Match,
        methods=st.lists(st.sampled_from(["GET", "POST"]), max_size=2, unique=True).map(tuple),
        path=st.lists(PATTERNS, max_size=2).map(tuple),
        host=st.lists(HOSTS, max_size=2).map(tuple),
        headers=ENTRIES,
        user=st.lists(st.sampled_from(["u", "v"]), max_size=2, unique=True).map(tuple),
        ip=st.lists(NETWORKS, max_size=2).map(tuple),
        authenticated=st.sampled_from([None, None, True, False]),
        negate=negate,
    )


MATCHES = matches(st.none() | matches(st.none()))
FACTS = st.builds(
    Facts,
    method=st.sampled_from(["GET", "POST"]),
    path=st.lists(st.sampled_from(["a", "b", "ab", "aab", "c"]), max_size=4).map(lambda parts: "/" + "/".join(parts)),
    host=st.sampled_from([None, "x.org", "a.x.org", "y.org"]),
    headers=st.dictionaries(st.sampled_from(["h", "k"]), st.sampled_from(["1", "2", "3"]), max_size=2),
    user=st.sampled_from([None, "u", "v", "w"]),
    ip=st.sampled_from([None, "10.1.2.3", "10.9.9.9", "192.168.1.1", "2001:db8::1"]),
)


def applies(match: Match, facts: Facts) -> bool:
    rule = Rule("r", Scope.GLOBAL, match, Per(), {}, on_store_failure=FailurePolicy.OPEN)
    matcher = Matcher([rule], lambda text: text)
    found = matcher.candidates(see(facts.method, facts.path, facts.host, None, matcher.labels_of(facts)))
    return any(candidate.guard is None or candidate.guard(facts) for candidate in found)


@given(MATCHES, MATCHES, st.lists(FACTS, min_size=5, max_size=20))
def test_matches_that_meet_somewhere_may_meet(one, other, many):
    """Where the matcher finds a request that matches both, ``may_meet`` has not denied it."""
    met = any(applies(one, facts) and applies(other, facts) for facts in many)
    assert may_meet(one, other) or not met


@given(MATCHES, MATCHES, st.lists(FACTS, min_size=5, max_size=20))
def test_what_is_covered_is_matched(wide, narrow, many):
    """Where ``covers`` says so, the matcher finds no request that matches the narrow one alone."""
    escaped = any(applies(narrow, facts) and not applies(wide, facts) for facts in many)
    assert not (covers(wide, narrow) and escaped)


@given(MATCHES)
def test_a_match_covers_itself_and_nothing_covers_everything(match):
    """Every match covers itself, and the empty one covers every other."""
    assert covers(match, match)
    assert covers(Match(), match)


COVERED = [
    ("/**", "/a/{x}/b"),
    ("/a/**", "/a"),
    ("/a/**", "/a/b/**"),
    ("/{x}/b", "/a/b"),
    ("/a*", "/ab"),
    ("/**/z", "/a/**/z"),
]
NOT_COVERED = [("/a/**", "/**"), ("/a/*", "/a/**"), ("/a", "/a*"), ("/{x}/b", "/a"), ("/a/**/z", "/a")]


def test_paths_cover_paths():
    """A wider pattern covers a narrower one, never the reverse."""
    assert [pair for pair in COVERED if not covers(Match(path=pair[:1]), Match(path=pair[1:]))] == []
    assert [pair for pair in NOT_COVERED if covers(Match(path=pair[:1]), Match(path=pair[1:]))] == []
