"""Tables in parts, against a dict."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.limiter.segmented import SEGMENTS, Numbered, Segmented

KEYS = st.integers(-3, 2**128) | st.text(max_size=3) | st.integers(0, 200)


@given(st.lists(st.tuples(st.sampled_from(["set", "pop", "del", "get"]), KEYS, st.integers())))
def test_it_is_a_dict(steps: list[tuple[str, int | str, int]]) -> None:
    """Whatever is put in, replaced and taken out, it holds what a dict holds."""
    table: Segmented[int | str, int] = Segmented()
    model: dict[int | str, int] = {}
    for what, key, value in steps:
        if what == "set":
            table[key] = model[key] = value
        elif what == "pop":
            assert table.pop(key) == model.pop(key, None)
        elif what == "del" and key in model:
            del table[key], model[key]
        else:
            assert table.get(key) == model.get(key)
            assert (key in table) == (key in model)
    assert dict(table.items()) == model
    assert (len(table), bool(table)) == (len(model), bool(model))
    assert all(table[key] == value for key, value in model.items())


@given(st.dictionaries(st.integers(0, 2**128), st.integers()), st.integers(0, 2**128))
def test_numbers_are_where_their_remainder_says(model: dict[int, int], other: int) -> None:
    """A number is in the part of its remainder, however large it is."""
    table: Numbered[int] = Numbered()
    for key, value in model.items():
        table[key] = value
    assert dict(table.items()) == model
    assert all(table.parts[key % SEGMENTS][key] == value for key, value in model.items())
    assert table.get(other) == model.get(other)


def test_what_is_not_there_is_an_error() -> None:
    """Reading and deleting an unknown key raise KeyError as with a dict."""
    table: Segmented[str, int] = Segmented()
    with pytest.raises(KeyError):
        table["a"]
    with pytest.raises(KeyError):
        del table["a"]


def test_no_part_is_much_larger_than_the_others() -> None:
    """Addresses in a row, those that end alike, and the /64 of one /32 are spread over all parts."""
    for keys in (range(61_000), range(1, 61_000 * 256, 256), range(0x20010DB8 << 32, (0x20010DB8 << 32) + 61_000)):
        table: Numbered[None] = Numbered()
        for key in keys:
            table[key] = None
        assert max(map(len, table.parts)) <= 2_000


def test_growing_holds_nobody_up_for_long() -> None:
    """Of a million puts the processor time of the slowest is far below that of copying a table of a million."""
    table: Segmented[int, None] = Segmented()
    plain: dict[int, None] = {}

    def slowest(entries: dict[int, None] | Segmented[int, None]) -> int:
        worst = 0
        for key in range(2**31, 2**31 + 750_000):
            began = time.thread_time_ns()
            entries[key] = None
            worst = max(worst, time.thread_time_ns() - began)
        return worst

    assert slowest(table) * 4 < slowest(plain)
