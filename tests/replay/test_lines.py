"""From bytes to lines: gzip, sizes, ends."""

from __future__ import annotations

import gzip
import io
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.bounds import REPLAY_LINE_CHARS_MAX, REPLAY_READ_BYTES
from sluicegate.errors import ConfigurationError
from sluicegate.replaying import lines as lines_module
from sluicegate.replaying.lines import TOO_LONG, Log, line_batches


def lines_of(path: Path) -> list[str]:
    """All lines of a log."""
    log = Log(str(path))
    try:
        return [line for batch in line_batches(log.pieces(lambda _: None)) for line in batch]
    finally:
        log.close()


def cut(data: bytes, size: int) -> list[bytes]:
    """``data`` in pieces."""
    return [data[begin : begin + size] for begin in range(0, len(data), size)]


@given(st.lists(st.text(alphabet="ab é\udc80\r\0", max_size=12), max_size=12), st.booleans(), st.integers(1, 20))
def test_pieces_do_not_matter(lines: list[str], ended: bool, size: int) -> None:
    """However a log is cut into pieces, its lines are the same, characters of several bytes and bad bytes included."""
    data = "\n".join(lines).encode("utf-8", "surrogateescape") + (b"\n" if ended and lines else b"")
    found = [line for batch in line_batches(iter(cut(data, size))) for line in batch]
    expected = data.decode("utf-8", "surrogateescape").split("\n")
    assert found == (expected[:-1] if not expected[-1] else expected)


@pytest.mark.parametrize("size", [1_000, 50_000, 1_000_000])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_line_that_is_too_long(size: int, position: int) -> None:
    """It is dropped and leaves its place; its neighbours are whole."""
    lines = [b"first", b"second"]
    lines.insert(position, b"x" * (5 * REPLAY_LINE_CHARS_MAX))
    found = [line for batch in line_batches(iter(cut(b"\n".join(lines), size))) for line in batch]
    expected = ["first", "second"]
    expected.insert(position, TOO_LONG)
    assert found == expected
    just = [b"x" * REPLAY_LINE_CHARS_MAX, b"y" * (REPLAY_LINE_CHARS_MAX + 1)]
    found = [line for batch in line_batches(iter(cut(b"\n".join(just), size))) for line in batch]
    assert [len(line) for line in found] == [REPLAY_LINE_CHARS_MAX, 1]


def test_plain_and_gzip_are_told_by_content(tmp_path: Path) -> None:
    """Names mean nothing: packed content is unpacked, plain content is not, several gzip members follow one another."""
    plain, packed, members, padded = (tmp_path / name for name in ("a.gz", "b.log", "c", "d"))
    plain.write_bytes(b"one\ntwo\n")
    packed.write_bytes(gzip.compress(b"one\ntwo\n"))
    members.write_bytes(gzip.compress(b"one\nt") + gzip.compress(b"") + gzip.compress(b"wo\n"))
    padded.write_bytes(gzip.compress(b"one\ntwo") + bytes(700_000))
    for path in (plain, packed, members, padded):
        assert lines_of(path) == ["one", "two"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_gzip_in_small_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Reads and unpacked pieces of any size give the same lines, the first bytes arriving one by one too."""
    text = "".join(f"line {number} {'x' * (number % 50)}\n" for number in range(300))
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(text.encode()) + gzip.compress(text.encode()))
    monkeypatch.setattr(lines_module, "REPLAY_READ_BYTES", size)
    assert lines_of(path) == text.splitlines() * 2


def test_gzip_bomb_takes_no_memory(tmp_path: Path) -> None:
    """64 MiB of one line packed into 64 KiB is read in the memory of a few pieces."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(1 << 20)
    path = tmp_path / "bomb"
    with path.open("wb") as file:
        for _ in range(64):
            file.write(packer.compress(block))
        file.write(packer.flush())
    assert path.stat().st_size < 1 << 17
    tracemalloc.start()
    try:
        assert lines_of(path) == [TOO_LONG]
        assert tracemalloc.get_traced_memory()[1] < 16 * REPLAY_READ_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("damage", ["cut", "changed", "no member"])
def test_damaged_gzip(tmp_path: Path, damage: str) -> None:
    """Damaged data ends the replay with the name of the log: half a log would be a wrong answer."""
    data = gzip.compress(b"".join(b"line %d\n" % number for number in range(10_000)))
    path = tmp_path / "log.gz"
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "changed":
        path.write_bytes(data[:-6] + b"\0\0" + data[-4:])
    else:
        path.write_bytes(data + b"what is this")
    with pytest.raises(ConfigurationError, match=r"log\.gz: damaged gzip"):
        lines_of(path)


def test_byte_order_mark_and_empty(tmp_path: Path) -> None:
    """A byte order mark is no part of the first line; an empty log has no lines."""
    path = tmp_path / "log"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    assert lines_of(path) == ["one\r", "two"]
    for content in (b"", gzip.compress(b"")):
        path.write_bytes(content)
        assert "".join(lines_of(path)) == ""
    path.write_bytes(b"\x1f")
    assert lines_of(path) == ["\x1f"]


def test_unreadable(tmp_path: Path) -> None:
    """A log that is not there, or is a directory, is said by name."""
    for name in (tmp_path / "absent", tmp_path):
        with pytest.raises(ConfigurationError, match=str(name)):
            Log(str(name))


def test_progress_counts_bytes_of_the_file(tmp_path: Path) -> None:
    """Progress adds up to the size of the file as it lies there, packed or not."""
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(b"one\n" * 100_000))
    log = Log(str(path))
    reads: list[int] = []
    unpacked = sum(map(len, log.pieces(reads.append)))
    log.close()
    assert unpacked == 400_000
    assert sum(reads) == log.size_bytes == path.stat().st_size


def test_standard_input_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` is standard input, whose size is not known, and which belongs to the process."""
    stream = io.TextIOWrapper(io.BytesIO(b"one\n"))
    monkeypatch.setattr("sys.stdin", stream)
    log = Log("-")
    assert (log.size_bytes, b"".join(log.pieces(lambda _: None))) == (0, b"one\n")
    log.close()
    assert not stream.buffer.closed
