"""The allow and block lists against what they say, entry by entry."""

from __future__ import annotations

from hashlib import sha256
from ipaddress import IPv4Network, IPv6Address, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.bounds import LIST_DUE_SPARE, PENALTY_FORGETS_MAX
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import ConfigurationError, InvalidRequest
from sluicegate.limiter import lists as lists_module
from sluicegate.limiter.lists import Lists
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import ListChanges, ListEntry

HOUR_US = 3_600 * US_PER_S


class Naive:
    """Every entry in a plain list, looked through one by one with ``ipaddress``."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._entries: dict[tuple[str, str, Any], ListEntry] = {}

    def put(self, entry: ListEntry) -> None:
        self._entries[entry.list, entry.kind, self._at(entry.kind, entry.value)] = entry

    def remove(self, key: tuple[str, str, str]) -> None:
        self._entries.pop((key[0], key[1], self._at(key[1], key[2])), None)

    def find(self, facts: Facts) -> tuple[str, int | None] | None:
        """(list, end) of what counts: allow before block, of one list the longest."""
        for name in ("allow", "block"):
            ends = [
                entry.expires_us
                for (where, kind, at), entry in self._entries.items()
                if where == name and self._holds(kind, at, facts)
                if entry.expires_us is None or entry.expires_us > self._clock.now_us()
            ]
            if ends:
                return name, None if None in ends else max(end for end in ends if end is not None)
        return None

    @staticmethod
    def _at(kind: str, value: str) -> Any:
        if kind != "ip":
            return value
        network = ip_network(value)
        if network.version == 6 and network.prefixlen >= 96 and network.network_address.ipv4_mapped is not None:
            return IPv4Network((network.network_address.ipv4_mapped, network.prefixlen - 96))
        return network

    @staticmethod
    def _holds(kind: str, at: Any, facts: Facts) -> bool:
        if kind != "ip":
            return getattr(facts, kind) == at
        if facts.ip is None:
            return False
        address = ip_address(facts.ip)
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address.version == at.version and address in at


def _v4(bits: int, low: int) -> str:
    return str(IPv4Network((0x0A000000 | low >> (32 - bits) << (32 - bits), bits)))


def _v6(bits: int, low: int) -> str:
    return str(ip_network(((0x20010DB8 << 96 | low << 61) >> (128 - bits) << (128 - bits), bits)))


# Few addresses, so that entries overlap, replace each other and are met.
VALUES = st.one_of(
    st.tuples(st.just("ip"), st.builds(_v4, st.sampled_from([8, 28, 29, 30, 31, 32]), st.integers(0, 15))),
    st.tuples(st.just("ip"), st.builds(_v6, st.sampled_from([32, 61, 63, 64, 67, 128]), st.integers(0, 15))),
    st.tuples(st.just("ip"), st.integers(0, 15).map(lambda low: f"::ffff:10.0.0.{low}")),
    st.tuples(st.sampled_from(["user", "api_key", "tenant"]), st.sampled_from(["a", "b", "a/8", "10.0.0.1"])),
)
ADDRESSES = st.one_of(
    st.integers(0, 17).map(lambda low: f"10.0.0.{low}"),
    st.integers(0, 17).map(lambda low: f"::ffff:10.0.0.{low}"),
    st.integers(0, 17).map(lambda low: str(IPv6Address(0x20010DB8 << 96 | low << 61))),
)
NAMES = st.sampled_from([None, "", "a", "b", "a/8"])
FACTS = st.builds(Facts, ip=st.none() | ADDRESSES, user=NAMES, api_key=NAMES, tenant=NAMES)
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(["allow", "block"]), VALUES, st.none() | st.integers(0, 20)),
    st.tuples(st.just("remove"), st.sampled_from(["allow", "block"]), VALUES),
    st.tuples(st.just("wait"), st.integers(0, 130)),
    st.tuples(st.just("ask"), FACTS),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_every_lookup_says_what_a_walk_over_all_entries_says(steps: list[tuple[Any, ...]]) -> None:
    """Whatever was put, replaced, removed and has ended, a lookup finds the entry that counts, and its exact end."""
    clock = ManualClock()
    lists, naive = Lists(clock), Naive(clock)
    for step in steps:
        if step[0] == "put":
            _, name, (kind, value), minutes = step
            end_us = None if minutes is None else clock.now_us() + minutes * 7 * US_PER_S
            entry = ListEntry(name, kind, value, end_us, "test")
            lists.put(entry)
            naive.put(entry)
        elif step[0] == "remove":
            _, name, (kind, value) = step
            lists.remove((name, kind, value))
            naive.remove((name, kind, value))
        elif step[0] == "wait":
            clock.advance(step[1] * US_PER_S)
        else:
            found = lists.find(step[1])
            told = None if found is None else (found.list, found.expires_us)
            assert told == naive.find(step[1])
            if found is not None and found.expires_us is not None:
                assert found.left_us == found.expires_us - clock.now_us()


def test_an_entry_ends_to_the_microsecond() -> None:
    """An entry counts one microsecond before its end and does not at its end, without anybody looking after it."""
    clock = ManualClock()
    lists = Lists(clock)
    lists.put(ListEntry("block", "user", "eve", clock.now_us() + 10))
    clock.advance(9)
    found = lists.find(Facts(user="eve"))
    assert found is not None
    assert found.left_us == 1
    clock.advance(1)
    assert lists.find(Facts(user="eve")) is None
    assert lists.get(("block", "user", "eve")) is None


def test_what_is_found_is_told() -> None:
    """The entry found names its list, kind, canonical value and source; an entry is read in any spelling of its address."""
    lists = Lists(ManualClock())
    lists.put(ListEntry("block", "ip", "2001:DB8:0::/48", None, "feed"))
    found = lists.find(Facts(ip="[2001:db8::7]:443"))
    assert found is not None
    assert (found.rule, found.value, found.source, found.left_us) == ("block:ip", "2001:db8::/48", "feed", None)
    assert lists.get(("block", "ip", "2001:db8::/48")) == ListEntry("block", "ip", "2001:db8::/48", None, "feed")
    assert lists.sizes()["block", "ip"] == len(lists) == 1
    assert lists.remove(("block", "ip", "2001:0db8::/48"))
    assert not lists.remove(("block", "ip", "2001:0db8::/48"))
    assert (len(lists), lists.active) == (0, False)


def test_an_address_that_is_none_is_on_no_list() -> None:
    """A text that is no address is not found, also where a network holds every address; whether it is an error is not for lists to say."""
    lists = Lists(ManualClock())
    lists.put(ListEntry("block", "ip", "0.0.0.0/0"))
    lists.put(ListEntry("block", "ip", "::/0"))
    for text in ("nonsense", "10.0.0.1/32", "010.0.0.1", "1.2.3", "\ud800", "1.2.3.4\x00"):
        assert lists.find(Facts(ip=text)) is None
    assert lists.find(Facts(ip="10.0.0.1")) is not None
    assert lists.find(Facts(ip="fe80::1%eth0")) is not None
    assert lists.find(Facts(ip="")) is None
    assert lists.find(Facts()) is None


def test_an_identity_that_is_too_long_for_a_key_is_found_by_its_digest() -> None:
    """An entry made from a counter's key, which holds only the digest of a long identity, is found by the identity."""
    lists = Lists(ManualClock())
    long, other = "ü" * 100, "ä" * 100
    lists.put(ListEntry("block", "user", "#" + "0" * 64))
    assert lists.find(Facts(user=long)) is None
    lists.put(ListEntry("block", "user", "#" + sha256(long.encode()).hexdigest()))
    assert lists.find(Facts(user=long)) is not None
    assert lists.find(Facts(user=other)) is None
    assert lists.find(Facts(user="short")) is None


@pytest.mark.parametrize(
    "entry, field",
    [
        (ListEntry("deny", "ip", "10.0.0.1"), "list"),  # type: ignore[arg-type]
        (ListEntry("block", "header", "x"), "kind"),  # type: ignore[arg-type]
        (ListEntry("block", "ip", "10.0.0.1/8"), "value"),
        (ListEntry("block", "ip", "nonsense"), "value"),
        (ListEntry("block", "user", ""), "value"),
        (ListEntry("block", "user", "x" * 1_025), "value"),
        (ListEntry("block", "user", 7), "value"),  # type: ignore[arg-type]
        (ListEntry("block", "user", "x", -1), "expires_us"),
        (ListEntry("block", "user", "x", True), "expires_us"),
        (ListEntry("block", "user", "x", 1.5), "expires_us"),  # type: ignore[arg-type]
        (ListEntry("block", "user", "x", None, "s" * 1_025), "source"),
    ],
)
def test_what_is_no_entry_is_refused_and_changes_nothing(entry: ListEntry, field: str) -> None:
    """A bad entry is an error that names the field, and the good ones beside it are not put either."""
    lists = Lists(ManualClock())
    good = ListEntry("block", "user", "eve")
    for change in (
        lambda: lists.put(entry),
        lambda: lists.replace([good, entry]),
        lambda: lists.apply(ListChanges("a", 0, 1, True, [good, entry], [])),
        lambda: lists.apply(ListChanges("", 0, 1, False, [good, entry], [])),
    ):
        with pytest.raises(InvalidRequest) as caught:
            change()
        assert caught.value.field == field
        assert (len(lists), lists.revision, lists.active) == (0, 0, False)


def blocked(lists: Lists, *users: str) -> list[bool]:
    return [lists.find(Facts(user=user)) is not None for user in users]


def put(*users: str) -> list[ListEntry]:
    return [ListEntry("block", "user", user) for user in users]


def test_changes_follow_each_other() -> None:
    """Changes are taken over in order, those that are here already are ignored, and those that do not follow are refused."""
    lists = Lists(ManualClock())
    assert lists.apply(ListChanges("life", 0, 3, True, put("a", "b"), []))
    assert (lists.incarnation, lists.revision) == ("life", 3)
    change = ListChanges("life", 3, 5, False, put("c"), [("block", "user", "a")])
    assert lists.apply(change)
    assert blocked(lists, "a", "b", "c") == [False, True, True]
    assert not lists.apply(change)
    assert not lists.apply(ListChanges("life", 0, 3, False, put("a"), []))
    for strange in (ListChanges("life", 6, 7, False, put("d"), []), ListChanges("other", 5, 6, False, put("d"), [])):
        with pytest.raises(ConfigurationError, match="here is 5 of 'life'"):
            lists.apply(strange)
    assert blocked(lists, "a", "b", "c", "d") == [False, True, True, False]
    assert lists.apply(ListChanges("other", 0, 1, True, put("d"), []))
    assert blocked(lists, "b", "d") == [False, True]
    assert lists.revision == 1


def test_a_whole_state_is_put_in_service_at_one_moment() -> None:
    """While the pages of a whole state come in, the lists are the old ones; with the last page they are the new ones."""
    lists = Lists(ManualClock())
    lists.replace(put("old"))
    assert lists.apply(ListChanges("life", 0, 9, True, put("a"), [], more=True, cursor="1"))
    assert lists.apply(ListChanges("life", 9, 9, False, put("b"), [], more=True, cursor="2"))
    assert blocked(lists, "old", "a", "b") == [True, False, False]
    assert lists.revision == 0
    assert lists.apply(ListChanges("life", 9, 9, False, put("c"), []))
    assert blocked(lists, "old", "a", "b", "c") == [False, True, True, True]
    assert (lists.incarnation, lists.revision) == ("life", 9)


def test_pages_may_all_be_since_the_same_state() -> None:
    """A service may give all pages of an answer the ``since`` of the first, and the new revision to the last only."""
    lists = Lists(ManualClock())
    assert lists.apply(ListChanges("life", 0, 0, True, put("a"), [], more=True, cursor="1"))
    assert lists.apply(ListChanges("life", 0, 0, False, put("b"), [], more=True, cursor="2"))
    assert blocked(lists, "a", "b") == [False, False]
    assert lists.apply(ListChanges("life", 0, 7, False, put("c"), []))
    assert (blocked(lists, "a", "b", "c"), lists.revision) == ([True, True, True], 7)
    assert lists.apply(ListChanges("life", 7, 7, False, put("d"), [], more=True, cursor="3"))
    assert lists.revision == 7
    assert lists.apply(ListChanges("life", 7, 9, False, put("e"), [("block", "user", "a")]))
    assert (blocked(lists, "a", "b", "d", "e"), lists.revision) == ([False, True, True, True], 9)


def test_the_rest_of_a_lost_state_is_not_taken_for_changes() -> None:
    """After a page that did not follow the remaining pages of the old answer are refused, too; the whole state is needed again."""
    lists = Lists(ManualClock())
    lists.apply(ListChanges("life", 0, 4, True, put("old"), []))
    lists.apply(ListChanges("life", 0, 0, True, put("a"), [], more=True))
    for page in (
        ListChanges("other", 0, 0, False, put("b"), [], more=True),
        ListChanges("life", 0, 9, False, put("c"), []),
    ):
        with pytest.raises(ConfigurationError, match="here is 4 of 'life'"):
            lists.apply(page)
    assert blocked(lists, "old", "a", "b", "c") == [True, False, False, False]


def test_pages_that_break_off_are_forgotten() -> None:
    """A whole state that is begun again starts from nothing; a page that does not follow is refused, and the old lists stay."""
    lists = Lists(ManualClock())
    lists.replace(put("old"))
    lists.apply(ListChanges("life", 0, 9, True, put("a"), [], more=True))
    lists.apply(ListChanges("life", 0, 10, True, put("b"), [], more=True))
    with pytest.raises(ConfigurationError, match="got changes since 9"):
        lists.apply(ListChanges("life", 9, 9, False, put("c"), []))
    assert blocked(lists, "old", "a", "b", "c") == [True, False, False, False]
    lists.apply(ListChanges("life", 0, 10, True, put("b"), []))
    assert blocked(lists, "old", "a", "b") == [False, False, True]


def test_changes_that_come_in_pages_can_be_asked_for_again() -> None:
    """Where a page of changes was lost, the same changes are taken over from the beginning; the revision is that of the last page."""
    lists = Lists(ManualClock())
    lists.apply(ListChanges("life", 0, 5, True, [], []))
    first = ListChanges("life", 5, 8, False, put("a"), [], more=True, cursor="x")
    assert lists.apply(first)
    assert lists.revision == 5
    assert lists.apply(first)
    assert lists.apply(ListChanges("life", 8, 8, False, put("b"), [], more=False))
    assert blocked(lists, "a", "b") == [True, True]
    assert lists.revision == 8


def test_more_than_fits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound nothing is taken over and the lists stay as they are; replacing an entry needs no room."""
    monkeypatch.setattr(lists_module, "LIST_ENTRIES_MAX", 3)
    lists = Lists(ManualClock())
    lists.replace(put("a", "b", "c"))
    lists.put(ListEntry("block", "user", "c", None, "again"))
    for change in (
        lambda: lists.put(put("d")[0]),
        lambda: lists.replace(put("d", "e", "f", "g")),
        lambda: lists.apply(ListChanges("", 0, 1, False, put("d"), [])),
    ):
        with pytest.raises(ConfigurationError, match="at most 3"):
            change()
    assert blocked(lists, "a", "b", "c", "d") == [True, True, True, False]
    assert not lists.penalize(put("d")[0])


def test_what_has_ended_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that have ended are forgotten within two minutes, so they do not fill the lists."""
    monkeypatch.setattr(lists_module, "LIST_ENTRIES_MAX", 4)
    clock = ManualClock()
    lists = Lists(clock)
    for value in ("10.0.0.1", "10.0.0.0/8", "2001:db8::/32"):
        lists.put(ListEntry("block", "ip", value, clock.now_us() + US_PER_S))
    lists.put(ListEntry("allow", "user", "a", clock.now_us() + HOUR_US))
    clock.advance(125 * US_PER_S)
    lists.put(ListEntry("block", "user", "eve"))
    assert len(lists) == 2
    assert lists.sizes() == {
        ("allow", "ip"): 0, ("allow", "api_key"): 0, ("allow", "user"): 1, ("allow", "tenant"): 0,
        ("block", "ip"): 0, ("block", "api_key"): 0, ("block", "user"): 1, ("block", "tenant"): 0,
    }  # fmt: skip
    clock.advance(HOUR_US)
    lists.remove(("block", "user", "eve"))
    lists.replace([])
    assert not lists.active


def test_a_penalty_does_not_wait_for_all_that_has_ended() -> None:
    """A request that earns a penalty pays for a few entries that have ended, not for a whole feed; penalties alone still forget what has."""
    clock = ManualClock()
    lists = Lists(clock)
    end_us = clock.now_us() + HOUR_US
    lists.replace(ListEntry("block", "ip", f"10.0.{number >> 8}.{number & 255}", end_us) for number in range(1_000))
    clock.advance(HOUR_US + 120 * US_PER_S)
    sizes = []
    for number in range(20):
        entry = ListEntry("block", "user", f"u{number}", clock.now_us() + US_PER_S)
        assert lists.penalize(entry)
        sizes.append(len(lists))
    assert sizes[0] == 1_001 - PENALTY_FORGETS_MAX
    assert sizes[-1] == 20
    clock.advance(125 * US_PER_S)
    assert lists.penalize(ListEntry("block", "user", "eve"))
    assert len(lists) == 1


def test_an_entry_that_is_put_again_and_again_leaves_no_notes_behind() -> None:
    """A feed that renews the end of the same entries every minute keeps the memory of one entry each."""
    clock = ManualClock()
    lists = Lists(clock)
    for _ in range(5_000):
        clock.advance(US_PER_S)
        lists.put(ListEntry("block", "ip", "10.0.0.1", clock.now_us() + HOUR_US))
    (group,) = lists._state.block._blocks.values()
    assert group.due.notes <= 2 + LIST_DUE_SPARE
    assert lists.find(Facts(ip="10.0.0.1")) is not None


def test_a_penalty_outlives_a_new_state_until_the_service_speaks_of_it() -> None:
    """What this process put on its own list stays when the lists are replaced; an entry or a removal by the service is the last word."""
    clock = ManualClock()
    lists = Lists(clock)
    end_us = clock.now_us() + HOUR_US
    for user in ("a", "b", "c"):
        assert lists.penalize(ListEntry("block", "user", user, end_us, "penalty:login"))
    lists.apply(ListChanges("life", 0, 1, True, [ListEntry("block", "user", "b", end_us + 5, "penalty:login")], []))
    assert blocked(lists, "a", "b", "c") == [True, True, True]
    lists.apply(ListChanges("life", 1, 2, False, [], [("block", "user", "b"), ("block", "user", "c")]))
    assert blocked(lists, "a", "b", "c") == [True, False, False]
    lists.apply(ListChanges("life", 0, 3, True, [], []))
    assert blocked(lists, "a", "b", "c") == [True, False, False]
    clock.advance(HOUR_US)
    lists.replace([])
    assert not lists.active


def test_a_penalty_shortens_nothing() -> None:
    """A block that lasts longer is not replaced by a shorter penalty; a shorter one is."""
    clock = ManualClock()
    lists = Lists(clock)
    now_us = clock.now_us()
    lists.put(ListEntry("block", "user", "ever", None, "admin"))
    lists.put(ListEntry("block", "user", "soon", now_us + 1, "admin"))
    for user in ("ever", "soon"):
        assert lists.penalize(ListEntry("block", "user", user, now_us + 9, "penalty:x"))
    ever, soon = (lists.get(("block", "user", user)) for user in ("ever", "soon"))
    assert ever is not None
    assert soon is not None
    assert (ever.source, soon.source, soon.expires_us) == ("admin", "penalty:x", now_us + 9)
