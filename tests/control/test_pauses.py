from __future__ import annotations

import pytest

from sluicegate.clock import US_PER_S
from sluicegate.control.errors import Conflict, Invalid, NotAllowed, NotFound
from sluicegate.control.model import ABSENT
from sluicegate.rules.feed import Pause

SET = {"version": 1, "rules": [{"name": "api", "quota": "1/second"}, {"name": "b", "quota": "2/second"}]}


async def test_a_pause_and_its_end_by_hand(service, editor):
    """A paused rule is in what nodes are told until it is resumed; each is a revision of the overlay."""
    await service.rulesets.put_ruleset(editor, SET, expect=ABSENT)
    row = await service.pauses.pause(editor, "api", reason="incident")
    assert (row.id, row.rule, row.until_us, row.actor, row.ended_us) == (1, "api", None, "eve", None)
    snapshot = await service.snapshot()
    assert snapshot.pauses == (Pause("api", None, "incident"),) and snapshot.revisions.overlay == 1
    assert (await service.pauses.resume(editor, 1)).ended_us is not None
    snapshot = await service.snapshot()
    assert snapshot.pauses == () and snapshot.revisions.overlay == 2
    with pytest.raises(Conflict):
        await service.pauses.resume(editor, 1)
    with pytest.raises(NotFound):
        await service.pauses.resume(editor, 2)


async def test_a_pause_ends_by_itself(service, editor, clock, viewer):
    """When its time is over a pause holds no longer; that is audited as the clock's doing, once."""
    until_us = clock.now_us() + 60 * US_PER_S
    await service.pauses.pause(editor, None, until_us=until_us)
    clock.advance(60 * US_PER_S - 1)
    await service.watch.once()
    assert len((await service.pauses.page(page_size=9)).items) == 1
    clock.advance(1)
    assert (await service.pauses.page(page_size=9)).items == []
    with pytest.raises(Conflict):
        await service.pauses.resume(editor, 1)
    await service.watch.once()
    await service.watch.once()
    assert (await service.pauses.get(1)).ended_us == until_us
    assert (await service.revisions()).overlay == 2
    rows = (await service.audit.page(viewer, page_size=9)).items
    assert [(row.action, row.actor, row.outcome) for row in rows] == [
        ("pause.end", "system:clock", "accepted"), ("resume", "eve", "refused"), ("pause", "eve", "accepted"),
    ]  # fmt: skip


async def test_one_pause_per_rule(service, editor, clock):
    """A new pause of a rule takes the place of the old one, a pause of all rules stands beside them."""
    await service.rulesets.put_ruleset(editor, SET, expect=ABSENT)
    for rule in ("api", "b", None, "api", None):
        await service.pauses.pause(editor, rule)
    assert [(row.id, row.rule) for row in (await service.pauses.page(page_size=9)).items] == [
        (5, None),
        (4, "api"),
        (2, "b"),
    ]
    page = await service.pauses.page(page_size=2, ended=True)
    assert [row.id for row in page.items] == [5, 4]
    rest = await service.pauses.page(page_size=9, page_token=page.next_token, ended=True)
    assert [row.id for row in rest.items] == [3, 2, 1]


async def test_what_cannot_be_paused(service, editor, viewer, clock):
    """A rule that does not exist, a time that is past and a viewer pause nothing; a trial pauses nothing either."""
    with pytest.raises(NotFound):
        await service.pauses.pause(editor, "api")
    await service.rulesets.put_ruleset(editor, SET, expect=ABSENT)
    for rule in ("nope", "a\x00"):
        with pytest.raises(NotFound):
            await service.pauses.pause(editor, rule)
    with pytest.raises(Invalid):
        await service.pauses.pause(editor, "api", until_us=clock.now_us())
    with pytest.raises(NotAllowed):
        await service.pauses.pause(viewer, "api")
    await service.pauses.pause(editor, "api", validate_only=True)
    assert (await service.pauses.page(page_size=9, ended=True)).items == []
    for number in (-1, 0, 2**70):
        with pytest.raises(NotFound):
            await service.pauses.get(number)
