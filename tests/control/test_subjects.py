from __future__ import annotations

import pytest

from sluicegate.clock import US_PER_S
from sluicegate.control import subjects
from sluicegate.control.errors import Conflict, Invalid, NotAllowed, NotFound, PreconditionFailed
from sluicegate.control.model import ABSENT, ANY
from sluicegate.rules.feed import SubjectEntry

SET = {
    "version": 1,
    "tiers": {"default": "free", "names": ["free", "paid"]},
    "rules": [{"name": "api", "per": ["user"], "quota": {"free": "1/second", "paid": "9/second"}}],
}


async def test_a_subject(service, editor, clock, viewer):
    """A subject is put, read, changed and removed; nodes are told of it as an entry, then that it went."""
    ends_us = clock.now_us() + US_PER_S
    made = await service.subjects.put(
        editor, "user:8123", {"tier": "paid", "factor": "10x", "until_us": ends_us, "note": "n"}
    )
    assert await service.subjects.get("user:8123") == made and made.revision == 1
    told = await service.subjects.changes(0)
    assert told.full and told.put == [SubjectEntry("user:8123", "paid", 10, 1, ends_us)]
    assert (await service.subjects.put(editor, "user:8123", {"tier": "paid"}, expect=1)).revision == 2
    assert (await service.subjects.put(editor, "user:8123", {"tier": "paid"}, expect=2)).revision == 2
    await service.subjects.remove(editor, "user:8123", expect=2)
    told = await service.subjects.changes(2)
    assert (told.full, told.put, told.remove, told.revision) == (False, [], ["user:8123"], 3)
    with pytest.raises(NotFound):
        await service.subjects.remove(editor, "user:8123")
    with pytest.raises(NotFound):
        await service.subjects.get("user:8123")
    assert len((await service.audit.page(viewer, page_size=9)).items) == 4


@pytest.mark.parametrize(
    "factor, parts",
    [("10x", (10, 1)), ("1.5x", (3, 2)), (0.1, (1, 10)), (3, (3, 1)), ({"numerator": 4, "denominator": 6}, (2, 3))],
)
async def test_factors(service, editor, factor, parts):
    """A factor is a fraction of whole numbers, however it is written."""
    made = await service.subjects.put(editor, "user:1", {"factor": factor})
    assert (made.factor_numerator, made.factor_denominator) == parts


@pytest.mark.parametrize(
    "subject, value, pointer",
    [
        ("host:1", {"tier": "paid"}, "/subject"),
        ("user:", {"tier": "paid"}, "/subject"),
        ("user:\x00", {"tier": "paid"}, "/subject"),
        ("user:1", {}, ""),
        ("user:1", None, ""),
        ("user:1", {"tear": "paid"}, "/tear"),
        ("user:1", {"note": "nothing"}, ""),
        ("user:1", {"tier": "gold"}, "/tier"),
        ("user:1", {"tier": 5}, "/tier"),
        ("user:1", {"factor": 0}, "/factor"),
        ("user:1", {"factor": -1}, "/factor"),
        ("user:1", {"factor": True}, "/factor"),
        ("user:1", {"factor": "10000000x"}, "/factor"),
        ("user:1", {"factor": float("inf")}, "/factor"),
        ("user:1", {"factor": {"numerator": 1, "denominator": 0}}, "/factor"),
        ("user:1", {"factor": 2, "until_us": 5}, "/until_us"),
        ("user:1", {"factor": 2, "until_us": 2**70}, "/until_us"),
        ("user:1", {"tier": "paid", "until_us": 2**62}, "/until_us"),
        ("user:1", {"factor": 2, "rules": "api"}, "/rules"),
        ("user:1", {"factor": 2, "rules": ["api", "apy"]}, "/rules/1"),
        ("user:1", {"factor": 2, "note": 5}, "/note"),
    ],
)
async def test_what_is_no_subject(service, editor, subject, value, pointer):
    """A bad subject is refused with a pointer to what is wrong, tiers and rules that are not in service included."""
    await service.rulesets.put_ruleset(editor, SET, expect=ABSENT)
    with pytest.raises(Invalid) as caught:
        await service.subjects.put(editor, subject, value)
    assert caught.value.faults[0].pointer == pointer


async def test_preconditions(service, editor, viewer):
    """With the revision that was seen a change is made only if it is still that; without, whatever is there."""
    put = service.subjects.put
    with pytest.raises(PreconditionFailed):
        await put(editor, "user:1", {"factor": 2}, expect=ANY)
    await put(editor, "user:1", {"factor": 2}, expect=ABSENT)
    with pytest.raises(PreconditionFailed):
        await put(editor, "user:1", {"factor": 3}, expect=ABSENT)
    await put(editor, "user:1", {"factor": 3}, expect=ANY)
    with pytest.raises(PreconditionFailed):
        await service.subjects.remove(editor, "user:1", expect=1)
    await put(editor, "user:1", {"factor": 4})
    with pytest.raises(NotAllowed):
        await put(viewer, "user:1", {"factor": 5})
    assert (await service.subjects.put(editor, "user:1", {"factor": 6}, validate_only=True)).factor_numerator == 6
    assert (await service.subjects.get("user:1")).factor_numerator == 4


async def test_pages_and_prefix(service, editor):
    """Subjects come in pages in order of their bytes, of a prefix if asked."""
    names = ["api_key:k", "tenant:a", "user:A", "user:a", "user:b", "user:ä"]
    for name in reversed(names):
        await service.subjects.put(editor, name, {"factor": 2})
    found, token = [], ""
    while True:
        page = await service.subjects.page(page_size=2, page_token=token)
        found += [row.subject for row in page.items]
        token = page.next_token
        if not token:
            break
    assert found == names
    assert [row.subject for row in (await service.subjects.page(page_size=9, prefix="user:")).items] == names[2:]


async def test_subjects_are_bounded(service, editor, monkeypatch):
    """At the bound no subject is added, those that are there can still be changed, and one that goes makes room."""
    monkeypatch.setattr(subjects, "SUBJECTS_IN_NODE_MAX", 2)
    for name in ("user:a", "user:b"):
        await service.subjects.put(editor, name, {"factor": 2})
    await service.subjects.put(editor, "user:a", {"factor": 3})
    with pytest.raises(Conflict):
        await service.subjects.put(editor, "user:c", {"factor": 3})
    await service.subjects.remove(editor, "user:a")
    await service.subjects.put(editor, "user:c", {"factor": 3})
