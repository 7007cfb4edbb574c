from __future__ import annotations

import pytest

from sluicegate.control.errors import (
    AlreadyExists,
    Conflict,
    FileOwned,
    Invalid,
    ManagedBy,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
)
from sluicegate.control.model import ABSENT, ANY, IDENTITY, TIERS, Actor, Role

API = {"name": "api", "match": {"path": "/api/**"}, "per": ["ip"], "quota": "100/minute"}
LOGIN = {"name": "login", "match": {"path": "/login"}, "per": ["ip"], "quota": "5/minute"}
SET = {"version": 1, "rules": [API, LOGIN]}


async def test_the_first_version(service, editor, clock):
    """Before the first change there are no rules; the first set is version 1, with who made it, when and why."""
    assert await service.rulesets.current() is None
    applied = await service.rulesets.put_ruleset(editor, SET, expect=ABSENT, reason="begin")
    info = applied.version.info
    assert applied.changed and [change.rule for change in applied.changes] == ["api", "login"]
    assert (info.version, info.created_us, info.actor, info.auth) == (1, clock.now_us(), "eve", "token:1")
    assert (info.source_ip, info.request_id, info.action, info.reason) == ("192.0.2.7", "req-1", "ruleset.put", "begin")
    current = await service.rulesets.current()
    assert current == await service.rulesets.version(1) == applied.version
    assert current.document == SET and current.revisions == {"api": 1, "login": 1}
    assert (await service.revisions()).ruleset == 1


async def test_rules_one_by_one(service, editor):
    """A rule is made, read, replaced, patched, renamed and deleted; its revision is the version at which it last changed."""
    rules = service.rulesets
    await rules.create_rule(editor, API)
    await rules.create_rule(editor, LOGIN)
    current = await rules.current()
    assert (current.rule("api"), current.rule("login")) == ((API, 1), (LOGIN, 2))
    changed = await rules.put_rule(editor, "api", {"quota": "200/minute"}, expect=1)
    assert changed.version.rule("api") == ({"name": "api", "quota": "200/minute"}, 3)
    assert changed.version.revisions["login"] == 2
    patched = await rules.patch_rule(editor, "login", {"quota": "6/minute", "match": {"methods": ["POST"]}}, expect=2)
    assert patched.version.rule("login")[0]["match"] == {"path": "/login", "methods": ["POST"]}
    patched = await rules.patch_rule(editor, "login", {"match": {"methods": None}}, expect=4)
    assert patched.version.rule("login")[0]["match"] == {"path": "/login"}
    renamed = await rules.put_rule(editor, "login", {**LOGIN, "name": "sign-in"}, expect=ANY)
    assert [rule["name"] for rule in renamed.version.document["rules"]] == ["api", "sign-in"]
    deleted = await rules.delete_rule(editor, "sign-in", expect=6)
    assert deleted.version.revisions == {"api": 3}
    with pytest.raises(NotFound):
        deleted.version.rule("sign-in")
    again = await rules.put_rule(editor, "login", LOGIN, expect=ABSENT)
    assert again.version.rule("login") == (LOGIN, 8)
    assert [info.version for info in (await rules.versions(page_size=100)).items] == [8, 7, 6, 5, 4, 3, 2, 1]


async def test_tiers_and_identity(service, editor):
    """Tiers and identity settings have revisions of their own, and can be taken out again."""
    rules = service.rulesets
    await rules.create_rule(editor, API)
    tiers = {"default": "free", "names": ["free", "paid"]}
    with pytest.raises(PreconditionFailed):
        await rules.put_tiers(editor, tiers, expect=7)
    assert (await rules.put_tiers(editor, tiers, expect=ABSENT)).version.revisions[TIERS] == 2
    with pytest.raises(PreconditionRequired) as caught:
        await rules.put_tiers(editor, None, expect=None)
    assert caught.value.current == 2
    made = await rules.put_identity(editor, {"ip": {"ipv6_prefix": 56}}, expect=ABSENT)
    assert made.version.revisions == {"api": 1, TIERS: 2, IDENTITY: 3}
    gone = await rules.put_tiers(editor, None, expect=2)
    assert "tiers" not in gone.version.document
    with pytest.raises(Invalid) as refused:
        await rules.put_identity(editor, {"trusted_peers": ["10.0.0.0/8", "x"]}, expect=3)
    assert [fault.pointer for fault in refused.value.faults] == ["/trusted_peers/1"]


@pytest.mark.parametrize(
    "expect, error", [(None, PreconditionRequired), (9, PreconditionFailed), (ABSENT, PreconditionFailed)]
)
async def test_an_edit_must_know_what_it_changes(service, editor, expect, error):
    """Without the revision it was made from, or with another one, an edit is refused and changes nothing."""
    await service.rulesets.put_ruleset(editor, SET, expect=ABSENT)
    edits = [
        lambda: service.rulesets.put_ruleset(editor, {"version": 1, "rules": [API]}, expect=expect),
        lambda: service.rulesets.put_rule(editor, "api", {"quota": "1/second"}, expect=expect),
    ]
    if expect != ABSENT:
        edits += [
            lambda: service.rulesets.patch_rule(editor, "api", {"quota": "1/second"}, expect=expect),
            lambda: service.rulesets.delete_rule(editor, "api", expect=expect),
            lambda: service.rulesets.rollback(editor, 1, expect=expect),
        ]
    for edit in edits:
        with pytest.raises(error) as caught:
            await edit()
        assert caught.value.current == 1
    assert (await service.rulesets.current()).info.version == 1


async def test_what_does_not_exist(service, editor):
    """A rule or version that is not there is said so; one that is there is not made again."""
    with pytest.raises(NotFound):
        await service.rulesets.version(1)
    with pytest.raises(NotFound):
        await service.rulesets.version(10**30)
    with pytest.raises(NotFound):
        await service.rulesets.delete_rule(editor, "api", expect=None)
    with pytest.raises(PreconditionFailed) as caught:
        await service.rulesets.put_rule(editor, "api", API, expect=3)
    assert caught.value.current == 0
    await service.rulesets.create_rule(editor, API)
    with pytest.raises(AlreadyExists):
        await service.rulesets.create_rule(editor, API)
    with pytest.raises(NotFound):
        await service.rulesets.rollback(editor, 5, expect=1)


@pytest.mark.parametrize(
    "rule, pointer",
    [
        ({"name": "x", "quota": "5/minuet"}, "/quota"),
        ({"name": "x", "quota": "5/minute", "match": {"pth": "/"}}, "/match/pth"),
        ({"name": "x"}, "/quota"),
        ({"name": "not a name", "quota": "1/second"}, "/name"),
        ({"quota": "1/second"}, ""),
        ([], ""),
        (None, ""),
    ],
)
async def test_a_bad_rule_is_refused_with_pointers(service, editor, rule, pointer):
    """What is wrong with a rule is told by pointers into the rule that was sent; nothing is changed."""
    await service.rulesets.create_rule(editor, API)
    with pytest.raises(Invalid) as caught:
        await service.rulesets.create_rule(editor, rule)
    assert [fault.pointer for fault in caught.value.faults] == [pointer]
    assert (await service.revisions()).ruleset == 1


async def test_all_rules_or_none(service, editor):
    """One bad rule in a set keeps all of it out; the last rule cannot be taken out."""
    await service.rulesets.put_ruleset(editor, SET, expect=ABSENT)
    with pytest.raises(Invalid) as caught:
        await service.rulesets.put_ruleset(
            editor, {"version": 1, "rules": [LOGIN, {"name": "b", "quota": "x"}]}, expect=1
        )
    assert [fault.pointer for fault in caught.value.faults] == ["/rules/1/quota"]
    await service.rulesets.delete_rule(editor, "api", expect=1)
    with pytest.raises(Invalid):
        await service.rulesets.delete_rule(editor, "login", expect=1)


async def test_the_same_again_is_no_change(service, editor, viewer):
    """Rules that are so already make no version and no line in the audit trail."""
    await service.rulesets.put_ruleset(editor, SET, expect=ABSENT)
    again = await service.rulesets.put_ruleset(editor, {"rules": [API, LOGIN], "version": 1}, expect=1)
    assert not again.changed and again.version.info.version == 1
    assert len((await service.audit.page(viewer, page_size=10)).items) == 1


async def test_validate_only_changes_nothing(service, editor, viewer):
    """With ``validate_only`` everything is checked, the outcome is told, and nothing is kept."""
    tried = await service.rulesets.put_ruleset(editor, SET, expect=ABSENT, validate_only=True)
    assert tried.version.info.version == 1 and await service.rulesets.current() is None
    with pytest.raises(PreconditionFailed):
        await service.rulesets.put_ruleset(editor, SET, expect=4, validate_only=True)
    assert (await service.audit.page(viewer, page_size=10)).items == []
    assert (await service.revisions()).ruleset == 0


async def test_diff_and_rollback(service, editor):
    """Two versions are compared in meaning and by their parts; a rollback is a new version with the old rules."""
    rules = service.rulesets
    await rules.put_ruleset(editor, SET, expect=ABSENT)
    await rules.patch_rule(editor, "api", {"quota": "200/minute"}, expect=1)
    await rules.put_ruleset(editor, {"version": 1, "rules": [LOGIN, {**API, "quota": "200/minute"}]}, expect=2)
    diff = await rules.diff(1, 3)
    assert {change.rule for change in diff.changes} == {"api", "[order]"}
    assert diff.patches == {
        "api": [API, {**API, "quota": "200/minute"}],
        "[order]": [["api", "login"], ["login", "api"]],
    }
    back = await rules.rollback(editor, 1, expect=3, reason="too much")
    assert back.version.info.version == 4 and back.version.document == SET
    assert back.version.info.digest == (await rules.version(1)).info.digest
    assert (await rules.diff(1, 4)).patches == {} == (await rules.diff(1, 4)).patches


async def test_versions_come_in_pages(service, editor):
    """Pages follow one another without gap or repetition, though versions come in between; a page is never too large."""
    for number in range(1, 8):
        await service.rulesets.put_ruleset(
            editor, {"version": 1, "rules": [{**API, "quota": f"{number}/minute"}]}, expect=number - 1
        )
    first = await service.rulesets.versions(page_size=3)
    await service.rulesets.put_ruleset(editor, SET, expect=7)
    second = await service.rulesets.versions(page_size=3, page_token=first.next_token)
    third = await service.rulesets.versions(page_size=3, page_token=second.next_token)
    assert [[info.version for info in page.items] for page in (first, second, third)] == [[7, 6, 5], [4, 3, 2], [1]]
    assert third.next_token == ""
    assert len((await service.rulesets.versions(page_size=10**9)).items) == 8
    for token in ("x", "W10", "W251bGxd", "WyJhIl0", "WzFd" * 5_000, "WzFlOTldCg"):
        with pytest.raises(Invalid):
            await service.rulesets.versions(page_size=3, page_token=token)


async def test_a_file_owns_the_rules(service, editor, tmp_path):
    """While a file owns the rules each accepted edit is a version, a bad one is told with its line (T109), and edits by others are refused."""
    path = str(tmp_path / "rules.yaml")
    service.own_by_file(path)
    with pytest.raises(FileOwned) as caught:
        await service.rulesets.create_rule(editor, API)
    assert caught.value.path == path and path in str(caught.value)
    taken = await service.take_file(b"version: 1\nrules: [{name: a, quota: 1/second}]\n", "rules.yaml")
    assert (taken.version.info.actor, taken.version.info.version) == ("file:rules.yaml", 1)
    assert not (
        await service.take_file(b"# again\nversion: 1\nrules: [{name: a, quota: 1/second}]\n", "rules.yaml")
    ).changed
    with pytest.raises(Invalid) as refused:
        await service.take_file(b"version: 1\nrules:\n  - {name: a, quota: 1/minuet}\n", "rules.yaml")
    assert refused.value.problems[0].line == 3 and "rules.yaml:3" in str(refused.value)
    with pytest.raises(FileOwned):
        await service.rulesets.rollback(editor, 1, expect=1)
    service.own_by_file("")
    await service.rulesets.create_rule(editor, API)


async def test_who_manages_the_rules(service, editor):
    """Rules that say who manages them are changed by it, or by force, and by nobody else."""
    rules = service.rulesets
    await rules.put_ruleset(editor, SET, expect=ABSENT, managed_by="git")
    with pytest.raises(ManagedBy) as caught:
        await rules.patch_rule(editor, "api", {"quota": "1/second"}, expect=1)
    assert caught.value.manager == "git"
    with pytest.raises(ManagedBy):
        await rules.put_ruleset(editor, SET, expect=1, managed_by="other")
    again = await rules.put_ruleset(editor, {"version": 1, "rules": [API]}, expect=1, managed_by="git")
    assert again.version.info.managed_by == "git"
    forced = await rules.patch_rule(editor, "api", {"quota": "1/second"}, expect=1, force=True)
    assert forced.version.info.managed_by == "git"
    freed = await rules.put_ruleset(editor, forced.version.document, expect=3, managed_by="", force=True)
    assert freed.changed and freed.version.info.managed_by == ""
    await rules.patch_rule(editor, "api", {"quota": "2/second"}, expect=3)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.NODE])
async def test_who_may_not_change_rules(service, actors, role, admin):
    """Viewers and nodes change nothing; the attempt is in the audit trail, with what was tried."""
    with pytest.raises(NotAllowed) as caught:
        await service.rulesets.create_rule(actors[role], API, reason="please")
    assert caught.value.needed == Role.EDITOR
    row = (await service.audit.page(admin, page_size=1)).items[0]
    assert (row.outcome, row.action, row.resource, row.reason) == ("refused", "rule.create", "rule:api", "please")


async def test_a_token_of_another_namespace(service):
    """An actor of other namespaces is refused here, and one of this namespace is not."""
    with pytest.raises(NotAllowed, match="default"):
        await service.rulesets.create_rule(Actor("x", "token:9", role=Role.ADMIN, namespaces=frozenset(["eu"])), API)
    own = Actor("x", "token:9", role=Role.EDITOR, namespaces=frozenset(["eu", "default"]))
    assert (await service.rulesets.create_rule(own, API)).changed


async def test_a_reason_is_text(service, editor, viewer):
    """A reason that is too long or cannot be printed refuses the change, and is not kept."""
    for reason in ("x" * 5_000, "a\x00b", "\ud800"):
        with pytest.raises(Invalid) as caught:
            await service.rulesets.create_rule(editor, API, reason=reason)
        assert caught.value.faults[0].pointer == "/reason"
    assert {row.reason for row in (await service.audit.page(viewer, page_size=9)).items} == {""}


async def test_names_that_no_database_takes(service, editor):
    """A name with zeros or half characters is refused like any other bad one, and its attempt is kept in a form that can be."""
    for name in ("a\x00b", "\ud800"):
        with pytest.raises((Invalid, NotFound, Conflict)):
            await service.rulesets.create_rule(editor, {**API, "name": name})
        with pytest.raises(NotFound):
            await service.rulesets.delete_rule(editor, name, expect=None)


async def test_a_change_is_judged_before_others_wait(service, editor, monkeypatch):
    """What an edit comes to is found while anybody else may change things; where the rules changed meanwhile it is found again."""
    rules, inside = service.rulesets, []
    await rules.put_ruleset(editor, {"version": 1, "rules": [{"name": "a", "quota": "1/second"}]}, expect=ABSENT)
    check = rules._check

    async def checked(edited):
        inside.append(service.ledger.database._writing.locked())
        if len(inside) == 2:
            await rules.create_rule(editor, {"name": "b", "quota": "1/second"})
        return await check(edited)

    monkeypatch.setattr(rules, "_check", checked)
    await rules.patch_rule(editor, "a", {"quota": "2/second"}, expect=1)
    assert inside == [False]
    applied = await rules.patch_rule(editor, "a", {"quota": "3/second"}, expect=2)
    assert inside == [False, False, False, True]
    assert [rule["name"] for rule in applied.version.document["rules"]] == ["a", "b"]
