"""The normal form of a request path and the other readings of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.bounds import PATH_CHARS_MAX
from sluicegate.rules.normal_form import normal_form, readings

NORMAL_FORMS = [
    ("/login", "/login"),
    ("/", "/"),
    ("", "/"),
    ("*", "/*"),
    ("login", "/login"),
    ("/login?next=/a/b", "/login"),
    ("/login#top", "/login"),
    ("/login?a#b?c", "/login"),
    ("?a", "/"),
    ("/login/", "/login"),
    ("/login//", "/login"),
    ("//login", "/login"),
    ("/a//b///c", "/a/b/c"),
    ("/LOGIN", "/login"),
    ("/%6cogin", "/login"),
    ("/%6Cogin", "/login"),
    ("/%4c%4F%47in", "/login"),
    ("/%256cogin", "/login"),
    ("/%25256cogin", "/login"),
    ("/%2%35%36cogin", "/login"),
    ("/./login", "/login"),
    ("/x/../login", "/login"),
    ("/../../login", "/login"),
    ("/x/%2e%2e/login", "/login"),
    ("/x/.%2E/login", "/login"),
    ("/x/%252e%252e/login", "/login"),
    ("/login/.", "/login"),
    ("/login/x/..", "/login"),
    ("/..", "/"),
    ("/a%2Fb", "/a/b"),
    ("/a%252fb", "/a/b"),
    ("/a\\b", "/a/b"),
    ("/a%5cb", "/a/b"),
    ("\\login", "/login"),
    ("/x/..\\login", "/login"),
    ("/login;jsessionid=1", "/login"),
    ("/login;", "/login"),
    ("/login%3bx", "/login"),
    ("/x/..;/login", "/login"),
    ("/;x/login", "/login"),
    ("/login%00", "/login"),
    ("/login%00.html", "/login"),
    ("/login%2500/x", "/login"),
    ("/login%3Fx", "/login"),
    ("/login%23x", "/login"),
    ("/login%0A", "/login"),
    ("/login%0d%0ax", "/login"),
    ("/login\x00x", "/login"),
    ("http://example.com/login", "/login"),
    ("HTTP://user@example.com:80//login?x", "/login"),
    ("http://example.com", "/"),
    ("http:/login", "/"),
    ("/http://example.com", "/http:/example.com"),
    ("/caf\u00e9", "/caf%C3%A9"),
    ("/caf%c3%a9", "/caf%C3%A9"),
    ("/CAF%C3%89", "/caf%C3%A9"),
    ("/%ff%fe", "/%FF%FE"),
    ("/\udcff", "/%FF"),
    ("/\ud800", "/%ED%A0%80"),
    ("/a b", "/a%20b"),
    ("/a%20b", "/a%20b"),
    ("/a+b", "/a+b"),
    ("/100%", "/100%25"),
    ("/100%25", "/100%25"),
    ("/%zz", "/%25zz"),
    ("/%", "/%25"),
    ("/a\x7f\x01", "/a%7F%01"),
    ('/a"<>|^`{}', "/a%22%3C%3E%7C%5E%60%7B%7D"),
    ("/a-._~!$&'()*+,=:@", "/a-._~!$&'()*+,=:@"),
    ("/.well-known/x", "/.well-known/x"),
    ("/...", "/..."),
    ("/a./.b", "/a./.b"),
]


@pytest.mark.parametrize(("target", "expected"), NORMAL_FORMS, ids=repr)
def test_normal_form(target: str, expected: str) -> None:
    """Each spelling has the stated normal form."""
    assert normal_form(target) == expected


READINGS = [
    ("/files/a/b", {"/files/a/b"}),
    ("/caf%C3%A9/", {"/caf%C3%A9"}),
    ("/files/a%2Fb", {"/files/a/b", "/files/a%2Fb"}),
    ("/files/a\\b", {"/files/a/b", "/files/a%5Cb"}),
    ("/a;b/c", {"/a/c", "/a;b/c"}),
    ("/files/;x", {"/files", "/files/;x"}),
    ("/files/a%3Fb/delete", {"/files/a", "/files/a%3Fb/delete"}),
    ("/api/../login", {"/login", "/api/../login"}),
    ("/api//../login", {"/login", "/api/login", "/api/../login"}),
    ("/login%0A", {"/login", "/login%0A"}),
    ("//x/login", {"/x/login", "/login"}),
    ("///x/login", {"/x/login", "/login"}),
    ("/\\x/login", {"/x/login", "/%5Cx/login", "/login"}),
    ("/login/%252e%252e/..", {"/", "/login/../..", "/login"}),
    ("/x/%2e%2e/../login", {"/login", "/x/../../login", "/x/login"}),
    ("/a%252Fb/c", {"/a/b/c", "/a%2Fb/c"}),
    ("/x/..;/login", {"/login", "/x/../login", "/x/..;/login"}),
    ("/a%2F..", {"/", "/a/..", "/a%2F.."}),
]


@pytest.mark.parametrize(("target", "expected"), READINGS, ids=repr)
def test_readings(target: str, expected: set[str]) -> None:
    """A path that servers read differently has every one of these readings, and no other."""
    assert set(readings(target)) == expected
    assert readings(target)[0] == normal_form(target)


PATH_TEXT = st.text(st.sampled_from("aB1%2fFeE5cC.;?#\\/\x00\u00e9\u0130\udcff3+ "), max_size=40)


@given(st.one_of(PATH_TEXT, st.text(max_size=30)))
def test_normal_form_is_idempotent(target: str) -> None:
    """A normal form is its own normal form, has one reading, is ASCII and begins with one slash."""
    form = normal_form(target)
    assert normal_form(form) == form
    assert readings(form) == (form,)
    assert form.isascii()
    assert form.startswith("/")
    assert "//" not in form
    assert form == "/" or not form.endswith("/")


@given(PATH_TEXT)
def test_every_reading_is_encoded_alike(target: str) -> None:
    """Readings are distinct, ASCII, and hold no empty segment, whatever the path."""
    found = readings(target)
    assert len(set(found)) == len(found) <= 60
    for reading in found:
        assert reading.isascii()
        assert reading.startswith("/")
        assert "//" not in reading


SEGMENT = st.text(st.sampled_from("abcxyz0123-_"), min_size=1, max_size=6)


@given(st.lists(SEGMENT, min_size=1, max_size=4), st.data())
def test_spellings_of_a_plain_path_meet(segments: list[str], data: st.DataObject) -> None:
    """Whatever mixture of encoding, case, slashes, dots and parameters spells a plain path, the normal form is that path."""
    spelled = ""
    for segment in segments:
        spelled += data.draw(st.sampled_from(["/", "//", "/./", "/x/../", "/%2e/", "\\", "%2F", "/q%2f%2E./"]))
        for character in segment:
            code = f"%{ord(character):02x}"
            spelled += data.draw(
                st.sampled_from([character, character.upper(), code, code.upper(), code.replace("%", "%25")])
            )
        spelled += data.draw(st.sampled_from(["", ";v=1", "%3Bv"]))
    spelled += data.draw(st.sampled_from(["", "/", "/.", "?q=1", "#f", "%00"]))
    assert normal_form(spelled) == "/" + "/".join(segments)


def test_too_long_path_is_an_error() -> None:
    """A path above the bound is refused rather than cut, because a cut path would match other rules."""
    assert normal_form("/" + "a" * (PATH_CHARS_MAX - 1)) == "/" + "a" * (PATH_CHARS_MAX - 1)
    with pytest.raises(ValueError, match=r"at most 4096 characters, got 4097"):
        normal_form("/" + "a" * PATH_CHARS_MAX)


def test_query_does_not_count_as_path() -> None:
    """Only the path is bounded: a long query belongs to others."""
    assert normal_form("/login?" + "a" * 3 * PATH_CHARS_MAX) == "/login"


HOSTILE = ["%4" + "%3" * 1_900 + "%31", "%25" * 1_300 + "41", "/" * 4_000, "..%2f" * 800, "/a%2f;./..//" * 90]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:12])
def test_hostile_paths_are_read_in_linear_time(text: str) -> None:
    """Paths made to need many passes or many readings still end in few readings; quadratic work would hang here."""
    for _ in range(20):
        assert len(readings(text)) <= 12


def test_long_path_with_too_many_readings_is_an_error() -> None:
    """What all readings together may cost is bounded; beyond it the path is refused, never read in fewer ways."""
    knot = "/a%2f;./..//%252e%252e/"
    assert len(readings(knot * 20)) > 3
    with pytest.raises(ValueError, match="readable in so many ways"):
        normal_form(knot * (PATH_CHARS_MAX // len(knot)))


REACHING_LOGIN = [
    ("one that decodes once and resolves dots (nginx)", "/login/%252e%252e/.."),
    ("one that resolves dots before it decodes", "/x/%2e%2e/../login".replace("x", "login/..")),
    ("a route that is a regular expression ending in $ (Starlette)", "/login%0A"),
    ("new URL(target, base), as RFC 3986 and WHATWG have it", "//example/login"),
    ("the same with a backslash", "/\\example/login"),
]


@pytest.mark.parametrize(("server", "target"), REACHING_LOGIN, ids=lambda text: text[:30])
def test_no_server_sees_a_login_that_the_rules_do_not(server: str, target: str) -> None:
    """Each target that some server serves as /login has /login among its readings."""
    assert "/login" in readings(target), server
