"""Known API keys: hashed at rest, named in facts."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.bounds import KEYS_FILE_BYTES_MAX
from sluicegate.errors import ConfigurationError
from sluicegate.rules.identity.keys import KnownKeys, hash_key, load_keys

A = "sha256:" + sha256(b"key-a").hexdigest()
B = "sha256:" + sha256(b"key-b").hexdigest()


def test_a_key_becomes_its_name() -> None:
    """The identity is the name; an unknown key, an empty one and the digest itself are nobody."""
    keys = KnownKeys.parse(f"billing: {A}\nmobile-app: {B}\n", "keys")
    assert len(keys) == 2
    assert [keys.name_of(key) for key in (b"key-a", b"key-b", b"key-c", b"", A.encode())] == [
        "billing",
        "mobile-app",
        None,
        None,
        None,
    ]


def test_the_file_is_also_yaml() -> None:
    """Comments, blank lines, quotes, a document mark, upper-case digits and CRLF are fine."""
    text = f'---\r\n# who\r\n\r\n  \'a.b@c\': "{A}"   # old\r\n"d" : sha256:{B[7:].upper()}\r\n'
    keys = KnownKeys.parse(text, "keys")
    assert (keys.name_of(b"key-a"), keys.name_of(b"key-b")) == ("a.b@c", "d")


def test_a_name_may_have_two_keys() -> None:
    """While a key is exchanged the old and the new one are the same client."""
    keys = KnownKeys.parse(f"app: {A}\napp: {B}\napp: {A}", "keys")
    assert keys.name_of(b"key-a") == keys.name_of(b"key-b") == "app"


@pytest.mark.parametrize(
    "line",
    [
        "app: my-secret-key",
        "app: sha256:abc",
        f"app: md5:{'0' * 64}",
        f"app {A}",
        f": {A}",
        f"-app: {A}",
        f"a b: {A}",
        f"app: {A} x",
        f"app: {A}0",
        f"'app\": {A}",
        f"app: {{sha256: {A}}}",
        f"{'n' * 257}: {A}",
    ],
)
def test_bad_lines_are_named_without_their_content(line: str) -> None:
    """An error names file and line, and never repeats what may be a key in the clear."""
    with pytest.raises(ConfigurationError) as caught:
        KnownKeys.parse(f"ok: {B}\n{line}\n", "keys.txt")
    assert str(caught.value).startswith("keys.txt:2: ")
    assert "my-secret-key" not in str(caught.value)


def test_one_key_has_one_name() -> None:
    """Two names with one key are a mistake, because it could not be told who came."""
    with pytest.raises(ConfigurationError, match=r"^k:2: 'b' and 'a' have the same key$"):
        KnownKeys.parse(f"a: {A}\nb: {A}\n", "k")


def test_files_are_read_with_clear_errors(tmp_path: Path) -> None:
    """A file that is missing, a directory, or too large is an error that names it."""
    good = tmp_path / "keys.txt"
    good.write_text(f"\ufeffapp: {A}\n", encoding="utf-8")
    assert load_keys(good).name_of(b"key-a") == "app"
    with pytest.raises(ConfigurationError, match=r"cannot read the keys file .*nothing.txt.*No such file"):
        load_keys(tmp_path / "nothing.txt")
    with pytest.raises(ConfigurationError, match="cannot read the keys file"):
        load_keys(tmp_path)
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(KEYS_FILE_BYTES_MAX + 1)
    with pytest.raises(ConfigurationError, match=f"larger than {KEYS_FILE_BYTES_MAX} bytes"):
        load_keys(tmp_path / "huge")


def test_bytes_that_are_not_text_are_a_bad_line(tmp_path: Path) -> None:
    """A file that is no text gives the error of its line, not a traceback."""
    (tmp_path / "k").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match=r"k:1: not of the form"):
        load_keys(tmp_path / "k")


@given(st.text(min_size=1, max_size=80), st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}", fullmatch=True))
def test_hash_and_lookup_agree(key: str, name: str) -> None:
    """What ``hash_key`` prints is what the lookup of the same key finds."""
    assert KnownKeys.parse(f"{name}: {hash_key(key)}", "k").name_of(key.encode()) == name


def test_keys_do_not_stay_in_memory() -> None:
    """The table holds digests and names only."""
    keys = KnownKeys.parse(f"app: {A}", "k")
    keys.name_of(b"key-a")
    assert keys._names == {bytes.fromhex(A[7:]): "app"}
