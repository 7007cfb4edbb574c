"""The map of a cluster's slots, without any server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from sluicegate.bounds import REDIS_CLUSTER_REFRESH_US
from sluicegate.stores.redis.addresses import Address
from sluicegate.stores.redis.slots import SLOTS, Redirect, Refresh, SlotMap, redirect_of, slot_of

ASKED = Address("10.0.0.9", 7_000)


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("123456789", 0x31C3),
        ("foo", 12_182),
        ("{user1000}.following", 3_443),
        ("{user1000}.followers", 3_443),
        ("foo{}{bar}", 8_363),
        ("foo{{bar}}zap", 4_015),
        ("foo{bar}{zap}", 5_061),
        ("{}", 15_257),
        ("{open", key_slot(b"{open")),
    ],
)
def test_slot_of(key: str, slot: int) -> None:
    """Slots are those of the specification: the first non-empty braces count, else the whole key."""  # P41
    assert slot_of(key) == slot == key_slot(key.encode())


@given(st.text(st.sampled_from("ab{}:\u00e9"), max_size=12))
def test_slot_of_any_key(key: str) -> None:
    """Any key has the slot that redis-py gives it."""
    assert slot_of(key) == key_slot(key.encode())


def test_map_of_redis_7() -> None:
    """Ranges, masters and replicas are read from a reply of Redis 7 or Valkey; metadata at the end is no server."""
    found = SlotMap.parse(
        [
            [0, 5_460, [b"127.0.0.1", 7_000, b"id0", []], [b"127.0.0.1", 7_003, b"id3", []]],
            [5_461, 10_922, [b"127.0.0.1", 7_001, b"id1", [b"hostname", b"b.example"]]],
            [10_923, 10_923, [b"127.0.0.1", 7_000, b"id0", []], [b"127.0.0.1", 7_003, b"id3", []]],
        ],
        ASKED,
    )
    a, b = Address("127.0.0.1", 7_000), Address("127.0.0.1", 7_001)
    assert [found.owner(slot) for slot in (0, 5_460, 5_461, 10_922, 10_923, 10_924, SLOTS - 1)] == [
        a, a, b, b, a, None, None,
    ]  # fmt: skip
    assert found.masters == (a, b)
    assert found.replicas == (Address("127.0.0.1", 7_003),)
    assert found.covered == 10_924


@pytest.mark.parametrize(
    ("entry", "address"),
    [
        ([b"::1", 7_001, b"id", []], Address("::1", 7_001)),
        ([b"b.example", 7_001, b"id", [b"ip", b"10.0.0.1"]], Address("b.example", 7_001)),
        ([b"", 7_001, b"id"], Address("10.0.0.9", 7_001)),
        ([None, 7_001, b"id", [b"ip", b"10.0.0.1"]], Address("10.0.0.9", 7_001)),
        ([b"?", 7_001, b"id", [b"ip", b"10.0.0.1"]], Address("10.0.0.1", 7_001)),
        ([b"?", 7_001, b"id", []], None),
        ([b"?", 7_001, b"id"], None),
        ([b"10.0.0.2", 7_001], Address("10.0.0.2", 7_001)),
    ],
)
def test_where_a_server_is(entry: list[object], address: Address | None) -> None:
    """A host name, an IPv6 address, no host (the one that was asked) and an unknown name (its address) are understood (P56)."""
    found = SlotMap.parse([[0, SLOTS - 1, entry]], ASKED)
    assert found.owner(7) == address
    assert found.masters == (() if address is None else (address,))
    assert found.covered == (SLOTS if address else 0)


@pytest.mark.parametrize(
    "reply",
    [
        b"OK",
        None,
        [[0]],
        [[0, 5, []]],
        [[0, 5]],
        [[5, 0, [b"h", 1]]],
        [[0, SLOTS, [b"h", 1]]],
        [[-1, 5, [b"h", 1]]],
        [[0, 5, [b"h", 0]]],
        [[0, 5, [b"h", b"1"]]],
        [[0, 5, [3, 1]]],
        [[b"0", b"5", [b"h", 1]]],
        [[0, 5, [b"\xff", 1]]],
        [7],
    ],
)
def test_what_is_no_map(reply: object) -> None:
    """Another reply than a map is an error, never half a map."""
    with pytest.raises(ValueError, match=r"slots|port|cannot be read|decode|unpack"):
        SlotMap.parse(reply, ASKED)


def test_replica_that_is_a_master_elsewhere() -> None:
    """A server that was promoted while the reply was made counts as the master it is."""
    a, b = [b"a", 1], [b"b", 1]
    found = SlotMap.parse([[0, 1, a, b], [2, 3, b]], ASKED)
    assert found.masters == (Address("a", 1), Address("b", 1))
    assert found.replicas == ()


def test_move() -> None:
    """MOVED changes its slot and no other."""
    found = SlotMap.parse([[0, SLOTS - 1, [b"a", 1]]], ASKED)
    found.move(7, Address("b", 2))
    assert (found.owner(6), found.owner(7), found.owner(8)) == (Address("a", 1), Address("b", 2), Address("a", 1))


@pytest.mark.parametrize(
    ("text", "redirect"),
    [
        ("MOVED 3999 127.0.0.1:6381", Redirect(False, 3_999, Address("127.0.0.1", 6_381))),
        ("ASK 3999 127.0.0.1:6381", Redirect(True, 3_999, Address("127.0.0.1", 6_381))),
        ("MOVED 1 ::1:7000", Redirect(False, 1, Address("::1", 7_000))),
        ("MOVED 1 [2001:db8::1]:7000", Redirect(False, 1, Address("2001:db8::1", 7_000))),
        ("MOVED 1 b.example:7000", Redirect(False, 1, Address("b.example", 7_000))),
        ("MOVED 16383 :7001", Redirect(False, 16_383, Address("10.0.0.9", 7_001))),
        ("MOVED 1 ?:7001", None),
        ("MOVED 16384 h:1", None),
        ("MOVED x h:1", None),
        ("MOVED 1 h:x", None),
        ("MOVED 1 h:0", None),
        ("MOVED 1 h:65536", None),
        ("MOVED 1", None),
        ("MOVED", None),
        ("TRYAGAIN 1 h:1", None),
        ("ERR unknown", None),
        ("", None),
    ],
)
def test_redirect_of(text: str, redirect: Redirect | None) -> None:
    """MOVED and ASK name a slot and a server; what names none that can be reached is no redirect."""
    assert redirect_of(text, ASKED) == redirect


def test_refresh_on_signs_of_change() -> None:
    """The first look is due at once, later ones on a sign, never two within the interval."""
    refresh = Refresh()
    assert refresh.due(0)
    refresh.begin(0)
    refresh.end(found=True)
    assert not refresh.due(REDIS_CLUSTER_REFRESH_US)
    refresh.want()
    assert not refresh.due(REDIS_CLUSTER_REFRESH_US - 1)
    assert refresh.due(REDIS_CLUSTER_REFRESH_US)


def test_no_refresh_without_signs() -> None:
    """A map that nobody contradicts stays."""
    refresh = Refresh()
    refresh.begin(5)
    refresh.end(found=True)
    assert not refresh.due(1 << 60)


def test_one_refresh_at_a_time() -> None:
    """While one look is under way no other begins, however old it is."""
    refresh = Refresh()
    refresh.begin(0)
    refresh.want()
    assert not refresh.due(1 << 60)


def test_sign_during_a_refresh() -> None:
    """A sign that comes while the map is asked for may be newer than the answer, so another look is due."""
    refresh = Refresh()
    refresh.begin(0)
    refresh.want()
    refresh.end(found=True)
    assert refresh.due(REDIS_CLUSTER_REFRESH_US)


def test_failed_refresh_is_repeated() -> None:
    """A look that found nobody is repeated at the interval."""
    refresh = Refresh()
    refresh.begin(0)
    refresh.end(found=False)
    assert not refresh.due(REDIS_CLUSTER_REFRESH_US - 1)
    assert refresh.due(REDIS_CLUSTER_REFRESH_US)
