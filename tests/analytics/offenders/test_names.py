"""Digests of clients, and the file of their secrets."""

from __future__ import annotations

import hashlib
import hmac
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluicegate.analytics.offenders import Names, load_secrets, parse_secret
from sluicegate.errors import ConfigurationError
from sluicegate.stores.keys import escape

SECRET = b"a secret of tests, long enough"


def test_digest_is_truncated_hmac() -> None:
    """A program in any language can make one: the first 16 hexadecimal characters of HMAC-SHA-256(secret, subject)."""
    expected = hmac.new(SECRET, b"user:8123", hashlib.sha256).hexdigest()[:16]
    names = Names([SECRET])
    assert names("user:8123") == names("user:8123") == expected


def test_names_differ_by_secret() -> None:
    """Without the secret nobody finds the client by trying: another secret gives another name."""
    assert Names([SECRET])("user:8123") != Names([b"another secret"])("user:8123")


def test_candidates_are_all_former_names() -> None:
    """After the secret was changed a client is still found under its digests by those before it, and in plain."""
    old, new = Names([SECRET]), Names([b"the next secret", SECRET])
    assert new.candidates("user:8123") == (new("user:8123"), old("user:8123"), "user:8123")
    assert new.candidates(old("user:8123")) == (old("user:8123"),)


def test_candidate_as_people_write_it() -> None:
    """A value with characters that subjects escape is found as it is written, too."""
    names = Names([SECRET])
    assert names("user:j%C3%B6rg") in names.candidates("user:jörg")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("203.0.113.9", "ip:203.0.113.9"),
        ("ip:::ffff:203.0.113.9", "ip:203.0.113.9"),
        ("2001:db8::1", "ip:2001:db8::/64"),
        ("ip:2001:DB8::1", "ip:2001:db8::/64"),
    ],
)
def test_an_address_is_found_however_it_is_written(written: str, kept: str) -> None:
    """With its kind or without, in any spelling, an address is the client that counters are kept by, as keys have it."""
    names = Names([SECRET])
    subject = f"ip:{escape(kept.removeprefix('ip:'))}"
    assert names(subject) in names.candidates(written)
    assert names.candidates("8123")[-1] == "8123", "what is no address stays as it is"


def test_memory_is_bounded_and_names_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered is forgotten when it is full; names do not change by it."""
    monkeypatch.setattr("sluicegate.analytics.offenders.names.ANALYTICS_NAMES_MAX", 10)
    names = Names([SECRET])
    first = [names(f"ip:{number}") for number in range(100)]
    assert [names(f"ip:{number}") for number in range(100)] == first
    assert len(names._known) <= 10


def test_secret_is_made_once(tmp_path: Path) -> None:
    """The file is made on first use, readable by its owner only, and read from then on."""
    made = load_secrets(tmp_path / "data")
    file = tmp_path / "data" / "analytics.secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load_secrets(tmp_path / "data") == made
    assert [each.name for each in file.parent.iterdir()] == ["analytics.secret"]


def test_secret_made_by_many_at_once_is_one(tmp_path: Path) -> None:
    """Of several that start at once on one directory all have the same secret."""
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: load_secrets(tmp_path), range(32)))
    assert len(found) == 1


def test_nothing_is_made_where_only_asked(tmp_path: Path) -> None:
    """Who only looks makes no file."""
    assert load_secrets(tmp_path, make=False) == ()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "want 1 to 20 secrets, one a line, got 0"),
        (b"short\n", "a secret has 16 to 256 bytes, this one 5"),
        (b"\xff\xfe" * 20, "it is not text"),
        (b"0123456789abcdef\n" * 21, "want 1 to 20 secrets"),
        (b"x" * 100_000, "a secret has 16 to 256 bytes"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    """A file that cannot be used is named with what is wrong, and what it holds is not shown."""
    (tmp_path / "analytics.secret").write_bytes(content)
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        load_secrets(tmp_path)
    assert "analytics.secret" in str(caught.value)
    assert "0123456789" not in str(caught.value)


def test_setting_is_checked() -> None:
    """A secret given as a setting has the same bounds, and the complaint names the setting."""
    assert parse_secret(" 0123456789abcdef\n", "--analytics-secret") == b"0123456789abcdef"
    with pytest.raises(ConfigurationError, match="--analytics-secret: a secret has 16"):
        parse_secret("no", "--analytics-secret")
