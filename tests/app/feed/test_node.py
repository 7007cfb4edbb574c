"""Nodes of a real rules service: what is changed there is live here, whatever happens in between."""

from __future__ import annotations

import asyncio
import logging

import pytest

from sluicegate.app.feed.client import FeedError
from sluicegate.app.feed.metrics import feed_metrics
from sluicegate.control.model import Actor, Role
from sluicegate.errors import ConfigurationError
from sluicegate.rules.feed import ListEntry, NodeReport, Revisions
from sluicegate.rules.identity.keys import hash_key

pytestmark = pytest.mark.slow


def limit(node, user="u1", rule="r0"):
    """The limit of one user now, by the rules in service."""
    return next(result.limit for result in node.limiter.peek({"user": user}).results if result.rule == rule)


@pytest.fixture
async def node(control, make_node):
    """A node that runs, of a service with one rule of five a minute."""
    await control.put("5/minute")
    made = make_node(control.url)
    await made.feed.begin()
    made.run()
    return made


async def test_a_change_is_live(control, node, until):
    """A version kept by the service is decided by here a moment later, and decisions, state and report carry its number."""
    assert (node.state.version, limit(node)) == (1, 5)
    await control.put("6/minute")
    await until(lambda: limit(node) == 6)
    decision = node.limiter.check({"user": "u1"})
    assert decision.version == node.state.version == node.node.standing.applied.ruleset == 2
    assert node.node.detail()["connected"] is True
    await until(lambda: node.node.standing.lag_s == 0)

    async def told():
        page = await control.service.nodes.page(page_size=10)
        return [(row.report.node, row.report.applied.ruleset, row.lag_us) for row in page.items]

    async with asyncio.timeout(60):
        while await told() != [("n0", 2, 0)]:
            await asyncio.sleep(0.05)


async def test_lists_and_subjects_come_as_changes(control, node, until, editor):
    """Entries and subjects that are put and removed at the service act here without the rules being told again."""
    accepted = node.state.accepted
    await control.service.lists.put(editor, "block", "user", "bad")
    await until(lambda: not node.limiter.peek({"user": "bad"}).allowed)
    await control.service.lists.remove(editor, ("block", "user", "bad"))
    await until(lambda: node.limiter.peek({"user": "bad"}).allowed)
    assert node.state.accepted == accepted
    assert node.node.standing.applied.lists == 2


async def test_a_pause_ends_without_the_service(control, node, until, editor, caplog):
    """A pause is live as soon as it is made and ends at its time, with the service gone; the node warns of it, and says so while it lasts."""
    caplog.set_level("WARNING", "sluicegate")
    await control.service.pauses.pause(
        editor, "r0", until_us=node.limiter.clock.now_us() + 1_500_000, reason="a bad rule"
    )
    await until(lambda: not node.limiter.peek({"user": "u1"}).results)
    assert node.node.detail()["paused"] == ["r0"]
    assert {metric.name: metric.samples[0].value for metric in feed_metrics(node.node)}["sluicegate_feed_paused"] == 1
    await control.stop()
    await until(lambda: node.limiter.peek({"user": "u1"}).results, 5)
    assert limit(node) == 5
    await until(lambda: node.node.detail()["paused"] == [])
    assert node.node.detail()["connected"] is False
    told = [(each.message, each.fields) for each in caplog.records if each.message.startswith("rules_")]
    assert [message for message, _ in told] == ["rules_paused", "rules_resumed"]
    assert (told[0][1]["rule"], told[0][1]["reason"], told[1][1]["rule"]) == ("r0", "a bad rule", "r0")


async def test_a_fault_while_catching_up(control, node, until, monkeypatch):
    """What a fault of this program kept from being fetched is fetched all the same, though nothing changes any more and no report is answered."""
    ask = node.feed.client.snapshot
    faults: list[int] = []

    async def fails_once():
        if not faults:
            faults.append(1)
            raise RuntimeError("a fault of ours")
        return await ask()

    async def unheard(report):
        raise FeedError("it takes no reports")

    monkeypatch.setattr(node.feed.client, "report", unheard)
    monkeypatch.setattr(node.feed.client, "snapshot", fails_once)
    await control.put("6/minute")
    await until(lambda: limit(node) == 6, 10)
    assert faults


async def test_counters_that_were_changed_while_nobody_was_heard(control, make_node, until, monkeypatch):
    """A node that ran by what it had kept drops what it counted beside the store when it hears of the service for the first time."""
    await control.put("5/minute")
    before = make_node(control.url)
    await before.feed.begin()
    await before.stop()
    await control.stop()
    node = make_node(control.url)
    await node.feed.begin()
    forgotten = []
    node.node.on_epoch = lambda: forgotten.append(node.node.standing.heard)
    node.run()
    assert node.limiter.version == 1
    await control.start()
    await until(lambda: forgotten == [True])


async def test_clients_that_cannot_be_told(control, node, until):
    """A client whose name no JSON can carry keeps nothing else of a report from arriving."""
    seen: list[NodeReport] = []
    control.service.nodes.observers.append(seen.append)
    for user in ("\ud800", "eve"):
        node.limiter.known.lists.penalize(ListEntry("block", "user", user, None, "penalty:r0"))
    node.limiter.penalties.give_back(
        [ListEntry("block", "user", user, None, "penalty:r0") for user in ("\ud800", "eve")]
    )
    await until(lambda: [entry.value for report in seen for entry in report.penalties] == ["eve"])


async def test_the_service_is_away_for_a_while(control, node, until):
    """While the service is gone the node goes on as it was, says so, and catches up by itself when it is back."""
    await control.stop()
    await until(lambda: node.node.standing.connected is False)
    assert node.limiter.check({"user": "u2"}).allowed
    assert node.node.detail()["error"]
    await control.start()
    await control.put("7/minute")
    await until(lambda: limit(node) == 7)
    await until(lambda: node.node.standing.connected is True)


async def test_hints_that_are_doubled_late_or_wrong(control, node, until):
    """Hints in any order, twice, of another database or of versions that do not exist change nothing but the number of questions."""
    await control.put("6/minute")
    await until(lambda: limit(node) == 6)
    applied = node.node.standing.applied
    asked = node.feed.client.asked
    for _ in range(100):
        node.node.hint(Revisions(applied.incarnation, ruleset=1))
        node.node.hint(applied)
    assert node.feed.client.asked == asked
    node.node.hint(Revisions(applied.incarnation, ruleset=99))
    node.node.hint(Revisions("another", ruleset=3))
    node.node.hint(None)
    await until(lambda: not node.node.standing.unsure and node.node.standing.hinted is None)
    await until(lambda: node.node.standing.error is None)
    assert (node.node.standing.applied, limit(node)) == (applied, 6)
    assert node.feed.client.asked - asked < 12
    await control.put("7/minute")
    await until(lambda: limit(node) == 7)


async def test_a_bad_set_keeps_the_old(control, node, until, monkeypatch):
    """Rules that cannot be served here leave the old ones in service; the node says so in its state and its report, and takes the next ones."""
    apply = node.limiter.apply

    def refuse(rules):
        if rules.version == 2:
            raise ConfigurationError("keys: no such file")
        apply(rules)

    monkeypatch.setattr(node.limiter, "apply", refuse)
    await control.put("6/minute")
    await until(lambda: node.state.error)
    assert node.state.error == "version 2: keys: no such file"
    assert (node.state.version, limit(node), node.state.rejected) == (1, 5, 1)
    assert node.node.standing.lag_s > 0

    async def error_told():
        page = await control.service.nodes.page(page_size=10)
        return [(row.report.error, row.report.applied.ruleset) for row in page.items]

    async with asyncio.timeout(60):
        while await error_told() != [("version 2: keys: no such file", 1)]:
            await asyncio.sleep(0.05)
    await control.put("7/minute")
    await until(lambda: node.state.error is None)
    assert (node.state.version, limit(node)) == (3, 7)


async def test_another_life_of_the_database(control, make_control, node, until, editor):
    """A service on another database is taken as it is, lower numbers and removed entries included."""
    await control.put("6/minute")
    await control.service.lists.put(editor, "block", "user", "bad")
    await until(lambda: limit(node) == 6 and not node.limiter.peek({"user": "bad"}).allowed)
    await control.stop()
    other = await make_control()
    await other.stop()
    control.database = other.database
    await control.start()
    await control.put("9/minute")
    await until(lambda: limit(node) == 9)
    await until(lambda: node.limiter.peek({"user": "bad"}).allowed)
    await until(lambda: node.state.version == 1)
    assert node.node.standing.applied.ruleset == 1
    assert node.state.error is None


async def test_reports_tell_what_happened(control, node, until, editor):
    """Requests, refusals and penalties reach the service once; a penalty here is on the list of everybody."""
    penalty = {"after": "3 refusals/1m", "block": "10m"}
    rule = {"name": "login", "per": ["user"], "quota": "2/hour", "penalty": penalty}
    seen: list[NodeReport] = []
    control.service.nodes.observers.append(seen.append)
    expect = (await control.service.rulesets.current()).info.version
    await control.service.rulesets.put_ruleset(editor, {"version": 1, "rules": [rule]}, expect=expect)
    await until(lambda: node.state.version == 2)
    allowed = sum(node.limiter.check({"user": "eve"}).allowed for _ in range(10))
    assert allowed == 2
    await until(lambda: sum(report.requests for report in seen) >= 10)
    assert sum(report.requests for report in seen) == 10
    assert sum(report.rules["login"].refused for report in seen if "login" in report.rules) == 3
    assert [client for report in seen for client in report.would_refuse] == [("login", "user:eve", 3)]
    await until(lambda: node.node.standing.applied.lists == 1)
    entry = await control.service.lists.get(("block", "user", "eve"))
    assert entry.source == "penalty:login"


async def test_samples_are_drawn_when_asked_for(control, node, until):
    """The service is told of single requests at the rate it asks for, and of none when it asks for none."""
    seen: list[NodeReport] = []
    control.service.nodes.sample_per_s = 0.0
    await until(lambda: node.node.reports.sent >= 2 and not node.limiter.known.sampler.on)
    control.service.nodes.observers.append(lambda report: seen.extend(report.samples))
    node.limiter.check({"user": "early"})
    control.service.nodes.sample_per_s = 5.0
    await until(lambda: node.limiter.known.sampler.on)
    for number in range(200):
        node.limiter.check({"user": f"u{number}", "headers": {"cookie": "secret"}})
    await until(lambda: seen)
    assert len(seen) == 5
    assert all(set(sample.facts) == {"user"} for sample in seen)
    control.service.nodes.sample_per_s = 0.0
    await until(lambda: not node.limiter.known.sampler.on)


async def test_a_wrong_token(control, make_node, until):
    """A node with a wrong token and nothing kept does not start, and says why without showing the token."""
    await control.put("5/minute")
    node = make_node(control.url, token="wrong-token-of-nobody")
    with pytest.raises(ConfigurationError, match=r"does not know the token \(401\)") as raised:
        await node.feed.begin()
    assert "wrong-token" not in str(raised.value)


async def test_a_renewed_token(control, make_node, until, tmp_path):
    """A token's file is read again when the service refuses what it held."""
    await control.put("5/minute")
    file = tmp_path / "token"
    file.write_text("an-old-token-of-nodes\n")
    node = make_node(control.url, token=None, token_file=file)
    file.write_text("a-token-of-the-nodes\n")
    await node.feed.begin()
    assert limit(node) == 5


async def test_a_report_with_the_token_of_another_node(control, make_node, until, caplog):
    """A node whose reports are refused says why in its log, once, and goes on by what the service tells."""
    caplog.set_level(logging.WARNING, "sluicegate")
    admin = Actor("ann", "token:1", role=Role.ADMIN)
    _, text = await control.service.tokens.create(admin, "gw", Role.NODE, node="gw-7")
    await control.put("5/minute")
    node = make_node(control.url, token=text, node="gw-8")
    await node.feed.begin()
    node.run()
    refused = control.service.nodes.report
    tried = []

    async def report(actor, told):
        tried.append(told.node)
        return await refused(actor, told)

    control.service.nodes.report = report
    await until(lambda: len(tried) >= 2)
    (told,) = [record.fields for record in caplog.records if record.getMessage() == "report_refused"]
    assert "403" in told["error"] and "'gw-7'" in told["error"]
    await control.put("7/minute")
    await until(lambda: limit(node) == 7)


async def test_no_rules_yet(control, make_node, until, caplog):
    """A node waits for the first version of a service that has none, which is no error; where none comes in time it does not start."""
    caplog.set_level(logging.INFO, "sluicegate")
    node = make_node(control.url, wait_s=0.5)
    with pytest.raises(ConfigurationError, match="no rules yet"):
        await node.feed.begin()
    waiting = make_node(control.url)
    begun = asyncio.create_task(waiting.feed.begin())
    await asyncio.sleep(0.1)
    await control.put("5/minute")
    await begun
    assert limit(waiting) == 5
    assert node.state.rejected == waiting.state.rejected == 0
    told = {record.getMessage(): record.levelname for record in caplog.records}
    assert told["rules_awaited"] == "INFO"
    assert "rules_rejected" not in told


async def test_what_was_kept_is_damaged(control, make_node, until):
    """Rules on disk that are not what was written are not begun with: the reason is told, and a service that answers is enough."""
    await control.put("5/minute")
    node = make_node(control.url)
    await node.feed.begin()
    await node.stop()
    file = node.feed.kept.directory / "rules"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    await control.stop()
    again = make_node(control.url, wait_s=0.2)
    with pytest.raises(ConfigurationError, match="what was kept cannot be used"):
        await again.feed.begin()
    assert str(file) in again.node.detail()["kept_error"]
    await control.start()
    third = make_node(control.url)
    await third.feed.begin()
    assert limit(third) == 5
    assert third.node.detail()["kept_error"] is None


async def test_a_file_that_rules_name(control, make_node, until, tmp_path):
    """Rules whose keys are missing are refused and told, until they are there; a file that is edited later counts as edited, without a new version."""
    await control.put("5/minute", identity={"api_key": {"keys": "keys.txt"}})
    node = make_node(control.url, wait_s=0.5)
    with pytest.raises(ConfigurationError, match=r"keys\.txt"):
        await node.feed.begin()
    file = tmp_path / "keys.txt"
    file.write_text(f"billing: {hash_key('k' * 40)}\n")
    node = make_node(control.url)
    await node.feed.begin()
    node.run()
    before = node.limiter.resolver
    beside = tmp_path / "beside"
    beside.write_text(f"shipping: {hash_key('s' * 40)}\n")
    beside.replace(file)
    await until(lambda: node.limiter.resolver is not before)
    assert node.limiter.version == 1
    good = node.limiter.resolver
    file.unlink()
    await until(lambda: node.state.error)
    assert "keys.txt" in node.state.error
    assert node.limiter.resolver is good
    file.write_text(f"shipping: {hash_key('s' * 40)}\n")
    await until(lambda: node.state.error is None)
    assert node.limiter.version == 1
