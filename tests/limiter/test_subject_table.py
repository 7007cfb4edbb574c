"""Tiers and overrides of single subjects."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluicegate.algorithms import TokenBucket
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import ConfigurationError, InvalidRequest
from sluicegate.limiter import subject_table as table_module
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.subject_table import SubjectTable
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import SubjectChanges, SubjectEntry
from sluicegate.rules.load import load_rules

TIERS = """
version: 1
tiers: {default: free, names: [free, paid, gold]}
subjects: {"user:filed": paid, "user:both": paid, "api_key:k-filed": paid}
rules:
  - {name: api, per: {first_of: [api_key, user, tenant, ip]}, quota: {free: 2/minute, paid: 20/minute, gold: 200/minute}}
"""
LimiterOf = Callable[[str], tuple[Limiter, ManualClock]]


@pytest.fixture
def limiter_of() -> LimiterOf:
    def made(text: str) -> tuple[Limiter, ManualClock]:
        clock = ManualClock()
        return Limiter.from_rules(load_rules(text, "rules.yaml"), clock=clock), clock

    return made


def rules(*rules: str) -> str:
    return "version: 1\nrules:\n" + "".join(f"  - {{{rule}}}\n" for rule in rules)


# ---------------------------------------------------------------------- tiers


@pytest.mark.parametrize(
    "facts, limit",
    [
        (Facts(user="u"), 2),
        (Facts(user="filed"), 20),
        (Facts(user="both"), 200),
        (Facts(user="both", tier="free"), 2),
        (Facts(user="both", tier="unheard-of"), 2),
        (Facts(api_key="k", user="both"), 20),
        (Facts(api_key="other", user="both"), 200),
        (Facts(api_key="k-filed", user="both"), 200),
        (Facts(tenant="t"), 20),
        (Facts(user="odd"), 2),
        (Facts(user="bare"), 2),
    ],
)
def test_the_table_comes_before_the_rule_file(facts: Facts, limit: int, limiter_of: LimiterOf) -> None:
    """A tier is that of the facts, else of the table by API key, user, tenant, else of the rule file's subjects, else the default."""
    limiter, _ = limiter_of(TIERS)
    for subject, tier in (
        ("user:both", "gold"),
        ("api_key:k", "paid"),
        ("tenant:t", "paid"),
        ("user:odd", "unheard-of"),
    ):
        limiter.subjects.put(SubjectEntry(subject, tier))
    limiter.subjects.put(SubjectEntry("user:bare"))
    assert limiter.check(facts).limit == limit


def test_a_tier_changes_and_goes(limiter_of: LimiterOf) -> None:
    """A change of a subject's tier holds from the next request on, with the counter as it is; a removal leaves the default."""
    limiter, _ = limiter_of(TIERS)
    facts = Facts(user="8123")
    limiter.check(facts)
    limiter.subjects.put(SubjectEntry("user:8123", "paid"))
    assert limiter.check(facts).remaining == 18
    assert limiter.subjects.remove("user:8123")
    assert not limiter.subjects.remove("user:8123")
    assert limiter.check(facts).limit == 2
    assert limiter.engine.unknown_tiers == 0


def test_subjects_outlive_a_change_of_rules(limiter_of: LimiterOf) -> None:
    """After other rules were put in service the table is the same."""
    limiter, _ = limiter_of(TIERS)
    limiter.subjects.put(SubjectEntry("user:8123", "gold", 3, 1))
    limiter.apply(load_rules(TIERS.replace("200/minute", "300/minute"), "rules.yaml", 2))
    assert limiter.check(Facts(user="8123")).limit == 900


# ---------------------------------------------------------------------- overrides


def test_a_raise_helps_at_once_and_ends_by_itself(limiter_of: LimiterOf) -> None:
    """A client at its limit passes at once when its limit is raised; at the end the usual numbers are back, and what it used stays used."""
    limiter, clock = limiter_of(rules("name: api, per: [user], quota: 3/day"))
    eve, bob = Facts(user="eve"), Facts(user="bob")
    assert [limiter.check(eve).allowed for _ in range(4)] == [True, True, True, False]
    limiter.subjects.put(SubjectEntry("user:eve", None, 10, 1, clock.now_us() + 60 * US_PER_S))
    decision = limiter.check(eve)
    assert (decision.allowed, decision.limit, decision.remaining) == (True, 30, 26)
    assert limiter.check(bob).limit == 3
    clock.advance(60 * US_PER_S - 1)
    assert limiter.check(eve).limit == 30
    clock.advance(1)
    decision = limiter.check(eve)
    assert (decision.allowed, decision.limit, decision.remaining) == (False, 3, 0)


def test_a_cut_holds_at_once(limiter_of: LimiterOf) -> None:
    """A factor below one lowers the limit of one client, never below 1."""
    limiter, _ = limiter_of(rules("name: api, per: [user], quota: 10/minute"))
    eve = Facts(user="eve")
    limiter.check(eve)
    limiter.subjects.put(SubjectEntry("user:eve", None, 1, 4))
    assert (limiter.check(eve).limit, limiter.check(eve).allowed) == (2, False)
    limiter.subjects.put(SubjectEntry("user:eve", None, 1, 1_000))
    assert limiter.check(eve).limit == 1


def test_only_rules_that_count_the_subject_are_scaled(limiter_of: LimiterOf) -> None:
    """Counters shared by all and those of another identity keep their limits; composite ones are scaled."""
    limiter, _ = limiter_of(
        rules(
            "name: all, quota: 1000/minute",
            "name: by-ip, per: [ip], quota: 100/minute",
            "name: by-key, per: {first_of: [api_key, user]}, quota: 10/minute",
            "name: both, per: [user, endpoint], quota: 20/minute",
            "name: parts, per: [user], quota: 5/second; 50/minute",
        )
    )
    limiter.subjects.put(SubjectEntry("user:a|b", None, 2, 1))
    facts = Facts(user="a|b", api_key="k", ip="10.0.0.1", method="GET", path="/")
    limits = {result.rule: result.limit for result in limiter.check(facts).results}
    assert limits == {"all": 1000, "by-ip": 100, "by-key": 10, "both": 40, "parts#1": 10, "parts#2": 100}
    without_key = {result.rule: result.limit for result in limiter.check(Facts(user="a|b", ip="10.0.0.1")).results}
    assert without_key["by-key"] == 20
    assert {result.limit for result in limiter.check(Facts(user="a", method="GET")).results} == {1000, 10, 20, 5, 50}


def test_an_override_may_be_for_some_rules_only(limiter_of: LimiterOf) -> None:
    """Where an override names rules the others keep their limits; all parts of a quota belong to its rule."""
    limiter, _ = limiter_of(
        rules("name: a, per: [user], quota: 5/second; 50/minute", "name: b, per: [user], quota: 7/minute")
    )
    limiter.subjects.put(SubjectEntry("user:eve", None, 2, 1, None, ("a",)))
    assert [result.limit for result in limiter.check(Facts(user="eve")).results] == [10, 100, 7]


def test_the_api_key_comes_before_the_user_and_the_tenant(limiter_of: LimiterOf) -> None:
    """Of several overrides that concern a counter the one of the API key counts, else the user's, else the tenant's."""
    limiter, clock = limiter_of(rules("name: a, per: [api_key, user, tenant], quota: 10/minute"))
    facts = Facts(api_key="k", user="u", tenant="t")
    for subject, factor, limit in (("tenant:t", 2, 20), ("user:u", 3, 30), ("api_key:k", 4, 40)):
        limiter.subjects.put(SubjectEntry(subject, None, factor, 1, clock.now_us() + US_PER_S))
        assert limiter.check(facts).limit == limit
    limiter.subjects.put(SubjectEntry("user:u", None, 3, 1))
    clock.advance(US_PER_S)
    assert limiter.check(facts).limit == 30


def test_bans_and_unlimited_tiers_stay_what_they_are(limiter_of: LimiterOf) -> None:
    """No factor lets a banned client in or limits one without a limit; on_missing and costs work as ever."""
    limiter, _ = limiter_of(
        rules(
            "name: ban, match: {path: /ban}, per: [user], quota: 0",
            "name: free, match: {path: /free}, per: [user], quota: unlimited",
            "name: key, match: {path: /key}, per: [api_key], quota: 5/minute, on_missing: deny",
            "name: cost, match: {path: /cost}, per: [user], quota: 5/minute, cost: 4",
        )
    )
    limiter.subjects.put(SubjectEntry("user:eve", None, 9, 1))
    asked = {path: limiter.check(Facts(user="eve", path=f"/{path}")) for path in ("ban", "free", "key", "cost")}
    assert {path: decision.allowed for path, decision in asked.items()} == {
        "ban": False,
        "free": True,
        "key": False,
        "cost": True,
    }
    assert asked["cost"].remaining == 41


def test_a_rule_that_starts_anew_on_change_does_not_at_an_override(limiter_of: LimiterOf) -> None:
    """``on_change: reset`` is about the rule's own numbers: an override gives back nothing that was used."""
    limiter, _ = limiter_of(rules("name: a, per: [user], quota: 4/day, on_change: reset"))
    eve = Facts(user="eve")
    for _ in range(4):
        limiter.check(eve)
    limiter.subjects.put(SubjectEntry("user:eve", None, 2, 1))
    assert limiter.check(eve).remaining == 3


def test_overrides_hold_in_every_form_of_asking(site_of) -> None:
    """Whatever the form of a request, its limits are those of its override, the store's answer and a reset included."""
    site = site_of("name: a, per: [user], quota: 2/minute")
    site.limiter.subjects.put(SubjectEntry("user:eve", None, 3, 1))
    eve = Facts(user="eve")
    assert [site.ask(eve).remaining for _ in range(3)] == [5, 4, 3]
    assert site.limiter.reset(eve) == 1
    assert site.ask(eve).remaining == 5
    assert site.ask(Facts(user="bob")).limit == 2


def test_without_the_store_a_raised_limit_is_shared_as_any_other(site_of) -> None:
    """While the store is away the client's share is that of its raised limit."""
    site = site_of("name: a, per: [user], quota: 2/minute")
    site.limiter.subjects.put(SubjectEntry("user:eve", None, 3, 1))
    site.store.down = True
    assert [site.ask(Facts(user="eve")).allowed for _ in range(7)] == [True] * 6 + [False]
    assert [site.ask(Facts(user="bob")).allowed for _ in range(3)] == [True, True, False]


def test_explain_tells_of_an_override(limiter_of: LimiterOf) -> None:
    """The rules that an override concerns are told with it, the others without."""
    limiter, _ = limiter_of(rules("name: a, per: [user], quota: 4/day", "name: b, per: [ip], quota: 4/day"))
    limiter.subjects.put(SubjectEntry("user:eve", None, 5, 2))
    a, b = limiter.engine.explain(Facts(user="eve", ip="10.0.0.1"))
    assert (a.rule, a.quota) == ("a", "4/day")
    assert a.override is not None
    assert (a.override.subject, a.override.numerator, a.override.denominator) == ("user:eve", 5, 2)
    assert b.override is None


# ---------------------------------------------------------------------- the table


def test_what_is_known_is_told() -> None:
    """An entry is read back as it was put, and counted."""
    clock = ManualClock()
    table = SubjectTable(clock)
    entry = SubjectEntry("user:eve", "paid", 3, 2, clock.now_us() + 1, ("a", "b"))
    table.put(entry)
    assert table.get("user:eve") == entry
    assert table.get("user:bob") is None
    assert (len(table), table.overrides, table.overriding) == (1, 1, True)
    table.put(SubjectEntry("user:eve", "paid"))
    assert (len(table), table.overrides, table.overriding) == (1, 0, False)


@pytest.mark.parametrize(
    "entry, field",
    [
        (SubjectEntry("eve"), "subject"),
        (SubjectEntry("user:"), "subject"),
        (SubjectEntry("ip:10.0.0.1"), "subject"),
        (SubjectEntry("user:" + "x" * 1_024), "subject"),
        (SubjectEntry(7), "subject"),  # type: ignore[arg-type]
        (SubjectEntry("user:x", ""), "tier"),
        (SubjectEntry("user:x", 7), "tier"),  # type: ignore[arg-type]
        (SubjectEntry("user:x", None, 0), "factor_numerator"),
        (SubjectEntry("user:x", None, 1_000_001), "factor_numerator"),
        (SubjectEntry("user:x", None, 1, 0), "factor_denominator"),
        (SubjectEntry("user:x", None, 1, True), "factor_denominator"),
        (SubjectEntry("user:x", None, 2, 1, -1), "until_us"),
        (SubjectEntry("user:x", None, 2, 1, None, (1,)), "rules"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_entry_is_refused_and_changes_nothing(entry: SubjectEntry, field: str) -> None:
    """A bad entry is an error that names the field, and the good ones beside it are not put either."""
    table = SubjectTable(ManualClock())
    good = SubjectEntry("user:good", "paid")
    for change in (
        lambda: table.put(entry),
        lambda: table.replace([good, entry]),
        lambda: table.apply(SubjectChanges("a", 0, 1, True, [good, entry], [])),
        lambda: table.apply(SubjectChanges("", 0, 1, False, [good, entry], [])),
    ):
        with pytest.raises(InvalidRequest) as caught:
            change()
        assert caught.value.field == field
        assert (len(table), table.revision) == (0, 0)


def test_changes_are_taken_over_in_order_and_pages_together() -> None:
    """Changes follow each other; the pages of a whole state are in service together with the last."""
    table = SubjectTable(ManualClock())
    table.put(SubjectEntry("user:old", "paid", 2, 1))
    assert table.apply(SubjectChanges("life", 0, 4, True, [SubjectEntry("user:a", "paid")], [], more=True))
    assert (table.get("user:a"), table.overriding) == (None, True)
    assert table.apply(SubjectChanges("life", 4, 4, False, [SubjectEntry("user:b", None, 2, 1)], ["user:a"]))
    assert (len(table), table.get("user:old"), table.overriding, table.revision) == (1, None, True, 4)
    assert table.apply(SubjectChanges("life", 4, 5, False, [SubjectEntry("user:c", "paid")], ["user:b"]))
    assert (len(table), table.overriding) == (1, False)
    assert not table.apply(SubjectChanges("life", 4, 5, False, [], ["user:c"]))
    with pytest.raises(ConfigurationError, match="subjects: got changes since 7 of 'life', but here is 5 of 'life'"):
        table.apply(SubjectChanges("life", 7, 8, False, [], ["user:c"]))
    assert len(table) == 1


def test_more_than_fits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound nothing is taken over; an entry that replaces another needs no room."""
    monkeypatch.setattr(table_module, "SUBJECTS_IN_NODE_MAX", 2)
    table = SubjectTable(ManualClock())
    names = [SubjectEntry(f"user:{n}", "paid") for n in range(3)]
    table.replace(names[:2])
    table.put(SubjectEntry("user:1", "gold"))
    for change in (
        lambda: table.put(names[2]),
        lambda: table.replace(names),
        lambda: table.apply(SubjectChanges("", 0, 1, False, names, [])),
    ):
        with pytest.raises(ConfigurationError, match="at most 2"):
            change()
    assert [table.get(f"user:{n}") is not None for n in range(3)] == [True, True, False]


def test_what_has_ended_is_forgotten() -> None:
    """An override that has ended leaves the table within two minutes, with its subject where that has no tier."""
    clock = ManualClock()
    table = SubjectTable(clock)
    table.put(SubjectEntry("user:a", None, 2, 1, clock.now_us() + US_PER_S))
    table.replace(
        [
            *(SubjectEntry(f"user:{n}", None, 2, 1, clock.now_us() + US_PER_S) for n in range(3)),
            SubjectEntry("user:t", "paid", 2, 1, clock.now_us() + 1),
        ]
    )
    clock.advance(125 * US_PER_S)
    table.put(SubjectEntry("user:b", "paid"))
    assert (len(table), table.overrides, table.overriding) == (2, 0, False)


def test_an_override_that_is_put_again_and_again_leaves_no_notes_behind() -> None:
    """Renewing the end of one override ten thousand times keeps the memory of one."""
    clock = ManualClock()
    table = SubjectTable(clock)
    for _ in range(5_000):
        clock.advance(US_PER_S)
        table.put(SubjectEntry("user:a", None, 2, 1, clock.now_us() + 3_600 * US_PER_S))
    assert table._due.notes <= 2 + table_module.LIST_DUE_SPARE


def test_scaled_counters_are_made_once_and_forgotten_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """One counter and factor give one scaled counter, so that a store sees no change of numbers; the memory of them is bounded."""
    limiter = Limiter.from_rules(load_rules(rules("name: a, per: [user], quota: 4/day"), "f"), clock=ManualClock())
    table = limiter.subjects
    table.replace([SubjectEntry(f"user:{n}", None, n + 2, 1) for n in range(9)])
    first = [limiter.engine.plan(Facts(user=str(n))).charges[0][0] for n in range(9)]
    again = [limiter.engine.plan(Facts(user=str(n))).charges[0][0] for n in range(9)]
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert first[3].spec == TokenBucket(20, 20, 86_400 * US_PER_S)
    monkeypatch.setattr(table_module, "COUNTER_MEMO_MAX", 4)
    table._scaled.clear()
    for n in range(9):
        limiter.check(Facts(user=str(n)))
    assert len(table._scaled) <= 4
