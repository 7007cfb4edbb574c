"""Path patterns: what is accepted, what is refused and why, what matches and what nearly does."""

from __future__ import annotations

import pytest

from sluicegate.bounds import PATTERN_SEGMENTS_MAX, SEGMENT_WILDCARDS_MAX
from sluicegate.rules.paths import parse_pattern, readings, segments_of

BAD_PATTERNS = [
    ("", "begins with '/'"),
    ("login", "did you mean '/login'?"),
    ("https://example.com/login", "did you mean '/login'?"),
    ("/a?b=1", "a query is not part of the path"),
    ("/a#b", "a fragment is never sent"),
    ("/a\\b", "write '/'"),
    ("/a;b", "parameters are not part of the path"),
    ("/a//b", "an empty segment"),
    ("/a/./b", "requests never keep"),
    ("/a/%2e%2E/b", "requests never keep"),
    ("/a%2Fb", "an encoded '/'"),
    ("/a%5cb", "an encoded"),
    ("/a%00", "an encoded"),
    ("/a/**/b/**", "'**' twice"),
    ("/a**", "'**' stands alone"),
    ("/a/***", "'**' stands alone"),
    ("/:id", "write '{id}'"),
    ("/<int:id>", "write '{id}'"),
    ("/<id>", "write '{id}'"),
    ("/{id:int}", "write '{id}'"),
    ("/{rest:path}", "write '**'"),
    ("/{a b}", "not a name in braces"),
    ("/{}", "not a name in braces"),
    ("/{id", "a brace without its partner"),
    ("/id}", "a brace without its partner"),
    ("/{{id}}", "a brace without its partner"),
    ("/" + "*a" * (SEGMENT_WILDCARDS_MAX + 1), "wildcards; 8 are the most"),
    ("/a" * (PATTERN_SEGMENTS_MAX + 1), "at most 64 segments"),
]


@pytest.mark.parametrize(("text", "message"), BAD_PATTERNS, ids=repr)
def test_bad_pattern_says_what_is_wrong(text: str, message: str) -> None:
    """A pattern that could not mean what its writer thinks is refused with the reason."""
    with pytest.raises(ValueError, match=r".") as caught:
        parse_pattern(text)
    assert message in str(caught.value)


def matches(pattern: str, path: str) -> bool:
    """Whether any reading of the path matches."""
    return any(parse_pattern(pattern).matches(segments_of(reading)) for reading in readings(path))


MATCHES = [
    # pattern, paths that match, near misses
    ("/", ["/", "", "//", "/.", "/?x"], ["/a", "/index.html"]),
    ("/login", ["/login", "/login/", "/Login", "/login?x=1"], ["/", "/login2", "/logi", "/login/x", "/x/login", "/log-in"]),
    ("/login/", ["/login", "/login/"], ["/login/x"]),
    ("/users/{id}", ["/users/1", "/users/1/", "/users/a%2Fb", "/users/;x"], ["/users", "/users/", "/users/1/x", "/user/1"]),
    ("/users/*", ["/users/1", "/users/*"], ["/users", "/users/1/2"]),
    ("/users/{id}/posts/{post}", ["/users/1/posts/2"], ["/users/1/posts", "/users/posts/2", "/users/1/post/2"]),
    ("/api/**", ["/api", "/api/", "/api/v1", "/api/a/b/c/d"], ["/", "/apis", "/api2/x", "/x/api"]),
    ("/**", ["/", "/a", "/a/b", "*", ""], []),
    ("/**/admin", ["/admin", "/a/admin", "/a/b/admin"], ["/", "/admin/x", "/a/admins", "/administrator"]),
    ("/a/**/z", ["/a/z", "/a/b/z", "/a/z/z", "/a/b/c/z"], ["/a", "/z", "/a/b", "/b/z", "/a/z/b"]),
    ("/a/**/*/z", ["/a/b/z", "/a/z/z", "/a/b/c/z"], ["/a/z"]),
    # T110: prefix, suffix and middle wildcards, also nested
    ("/report-*", ["/report-", "/report-1"], ["/report", "/xreport-1", "/report-1/x"]),
    ("/*.pdf", ["/.pdf", "/a.pdf", "/a.b.PDF"], ["/pdf", "/a.pdfx", "/a.pdf/x"]),
    ("/a*b*c", ["/abc", "/aXbYc", "/abbc", "/abcbc", "/abcc"], ["/ab", "/ac", "/abcb", "/bac", "/acb"]),
    ("/*a*", ["/a", "/bab"], ["/b"]),
    ("/x/*-{id}/y", ["/x/-1/y", "/x/a-1/y"], ["/x/a-/y", "/x/-/y", "/x/a-1"]),
    ("/v{major}.{minor}", ["/v1.2", "/v1.2.3"], ["/v.2", "/v1.", "/v1"]),
    ("/{a}-{b}", ["/a-b", "/---", "/a-b-c"], ["/-b", "/a-", "/--"]),
    ("/@{name}", ["/@a"], ["/@", "/a"]),
    ("/Caf%C3%A9/{id}", ["/caf\u00e9/1", "/CAF%C3%89/1"], ["/cafe/1"]),
    ("/*5", ["/5", "/%2535"], ["/%", "/%25"]),
    ("/*3*", ["/3"], ["/%C3%A9"]),
    ("/*\u00e9", ["/caf%C3%A9"], ["/cafe", "/%A9"]),
    ("/%2A", ["/*", "/%2a"], ["/a"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "hits", "misses"), MATCHES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_pattern_and_its_near_misses(pattern: str, hits: list[str], misses: list[str]) -> None:
    """Each pattern matches these paths and none of those beside them."""
    assert [path for path in hits if not matches(pattern, path)] == []
    assert [path for path in misses if matches(pattern, path)] == []


EVASIONS = [
    "/API/v1/Shorten",
    "/api/v1/shorten/",
    "/api/v1//shorten",
    "//api/v1/shorten",
    "/api/v1/./shorten",
    "/api/v2/../v1/shorten",
    "/api/v1/x/%2e%2e/shorten",
    "/api/v1/x/..%2Fshorten",
    "/api/v1/x\\..\\shorten",
    "/api%2Fv1%2Fshorten",
    "/api%252Fv1/shorten",
    "/api/v1/%73horten",
    "/api/v1/%2573horten",
    "/api/v1/shorten;a=b",
    "/api;a/v1;b/shorten;c",
    "/x/..;/api/v1/shorten",
    "/api/v1/shorten?x",
    "/api/v1/shorten#x",
    "/api/v1/shorten%3Fx",
    "/api/v1/shorten%00",
    "/api/v1/shorten%23",
    "http://other.example/api/v1/shorten",
    "/api/v1/x//../shorten",
]


@pytest.mark.parametrize("path", EVASIONS)
@pytest.mark.parametrize("pattern", ["/api/v1/shorten", "/api/*/shorten", "/api/**", "/**/shorten", "/api/v{n}/short*"])
def test_no_spelling_evades_a_rule(pattern: str, path: str) -> None:
    """Every spelling by which some server reaches /api/v1/shorten matches the rules for it."""
    assert matches(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/files/{name}/delete", "/files/a%2Fb/delete"),
        ("/files/{name}/delete", "/files/a%3Fb/delete"),
        ("/files/{name}/delete", "/files/;a/delete"),
        ("/files/{name}", "/files/%00"),
        ("/files/**", "/files/a/../.."),
        ("/files/**", "/files/.."),
        ("/files/{name}/delete", "/files/a%5Cb;v/delete"),
    ],
)
def test_data_readings_do_not_evade_either(pattern: str, path: str) -> None:
    """A server that takes an odd construct as data serves these under the pattern, so the rule applies."""
    assert matches(pattern, path)


def test_wildcards_inside_a_segment_never_backtrack() -> None:
    """A pattern and path made for exponential backtracking are settled at once."""
    pattern = parse_pattern("/" + "*a" * SEGMENT_WILDCARDS_MAX)
    assert not pattern.matches(["a" * 4_000 + "b"])
    assert pattern.matches(["a" * 4_000])
