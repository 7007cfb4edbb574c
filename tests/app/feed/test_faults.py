"""Nodes of a rules service that misbehaves: slow, killed in the middle of an answer, no service at all, or set back."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec
import pytest

from sluicegate.app.feed import client as client_module
from sluicegate.app.feed.client import FeedClient, FeedError
from sluicegate.app.feed.settings import FeedSettings
from sluicegate.errors import ConfigurationError
from sluicegate.rules.feed import (
    ListChanges,
    NodeReport,
    ReportAnswer,
    Revisions,
    RulesDocument,
    Snapshot,
    SubjectChanges,
)

pytestmark = pytest.mark.slow

RULES = {"version": 1, "rules": [{"name": "r0", "per": ["user"], "quota": "5/minute"}]}


class Fake:
    """A small rules service that says what a test wants. ``answers``: bodies by path; ``delay_s`` before each; ``cut``: paths whose answer breaks off."""

    def __init__(self) -> None:
        told = Revisions("fake", 1)
        self.answers = {
            "/v1/feed/revisions": told,
            "/v1/feed/snapshot": Snapshot(told, RulesDocument(1, "", RULES)),
            "/v1/feed/lists": ListChanges("fake", 0, 0, True, [], []),
            "/v1/feed/subjects": SubjectChanges("fake", 0, 0, True, [], []),
        }
        self.status = 200
        self.delays_s: dict[str, float] = {}
        self.cut: set[str] = set()
        self.asked: list[str] = []
        self.url = ""

    async def serve(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split()[1].decode().partition("?")[0]
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
                await reader.readexactly(int(fields.get(b"content-length", 0)))
                self.asked.append(path)
                await asyncio.sleep(self.delays_s.get(path, 0.0))
                answer = self.answers.get(path) or ReportAnswer(self.answers["/v1/feed/revisions"])
                body = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
                etag = getattr(answer, "etag", '""')
                known = self.status == 200 and fields.get(b"if-none-match", b"").decode() == etag.lower()
                status = 304 if known else self.status
                if status == 304:
                    # A proxy that does not let anybody wait.
                    body = b""
                writer.write(f"HTTP/1.1 {status} x\r\nETag: {etag}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
                writer.write(body[: len(body) // 2] if path in self.cut else body)
                if path in self.cut:
                    break
            await writer.drain()
        writer.close()


@pytest.fixture
async def fake():
    made = Fake()
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made


@pytest.fixture
async def client(fake):
    made = FeedClient(FeedSettings(url=fake.url, token="a-token-of-the-nodes"))
    yield made
    await made.close()


@pytest.mark.parametrize("kind", ["fake", "real"])
async def test_the_contract(kind, fake, control, make_node):
    """The small service and the real one answer the same questions in the same form, so that what is tested with the one holds for the other."""
    await control.put("5/minute")
    settings = FeedSettings(url=fake.url if kind == "fake" else control.url, token="a-token-of-the-nodes")
    client = FeedClient(settings)
    try:
        told = await client.revisions()
        assert told.ruleset == 1
        assert await client.revisions(told.etag) is None
        snapshot = await client.snapshot()
        assert snapshot.revisions == told
        assert (snapshot.rules.version, [rule["name"] for rule in snapshot.rules.document["rules"]]) == (1, ["r0"])
        assert await client.lists(0) == ListChanges(told.incarnation, 0, 0, True, [], [])
        assert await client.subjects(0) == SubjectChanges(told.incarnation, 0, 0, True, [], [])
        assert (await client.report(NodeReport("n", 1, "0", told))).revisions == told
    finally:
        await client.close()
    node = make_node(settings.url)
    await node.feed.begin()
    assert node.limiter.version == 1


async def test_an_answer_that_breaks_off(fake, make_node, until):
    """A service that dies in the middle of an answer has changed nothing; the node asks again and takes the whole one."""
    node = make_node(fake.url)
    await node.feed.begin()
    fake.cut = {"/v1/feed/snapshot"}
    told = Revisions("fake", 2)
    rules = {"version": 1, "rules": [{"name": "r0", "per": ["user"], "quota": "6/minute"}]}
    fake.answers |= {"/v1/feed/revisions": told, "/v1/feed/snapshot": Snapshot(told, RulesDocument(2, "", rules))}
    node.run()
    await until(lambda: node.node.standing.error)
    assert (node.state.version, node.limiter.version) == (1, 1)
    assert node.node.standing.lag_s > 0
    fake.cut = set()
    await until(lambda: node.limiter.version == 2)
    await until(lambda: node.node.standing.error is None)


@pytest.mark.measured
async def test_a_slow_service(fake, make_node, until):
    """Requests are decided while a slow service answers, other parts are fetched in time, and a start that can do without does not wait for it."""
    node = make_node(fake.url)
    await node.feed.begin()
    node.run()
    fake.delays_s = {"/v1/feed/snapshot": 1.0, "/v1/feed/revisions": 0.3}
    told = Revisions("fake", 2)
    fake.answers |= {"/v1/feed/revisions": told, "/v1/feed/snapshot": Snapshot(told, RulesDocument(2, "", RULES))}
    slowest = 0.0
    while node.limiter.version == 1:
        began = time.perf_counter()
        node.limiter.check({"user": "u"})
        slowest = max(slowest, time.perf_counter() - began)
        await asyncio.sleep(0.001)
    assert slowest < 0.2
    await until(lambda: node.feed.kept.read_rules().rules.version == 2)
    await node.stop()
    fake.delays_s = {"/v1/feed/revisions": 20.0}
    again = make_node(fake.url)
    began = time.monotonic()
    await again.feed.begin()
    assert again.limiter.version == 2
    assert time.monotonic() - began < 5


@pytest.mark.measured
async def test_nobody_may_wait(fake, make_node, until):
    """Where every poll is answered at once because nobody may wait there, the node asks ever less often."""
    node = make_node(fake.url, report_interval_s=300.0)
    await node.feed.begin()
    node.run()
    await asyncio.sleep(1.5)
    assert fake.asked.count("/v1/feed/revisions") < 12


@pytest.mark.measured
async def test_a_service_that_is_too_busy(fake, make_node):
    """While polls are answered 503 the node asks at pauses that grow, and are drawn at random."""
    node = make_node(fake.url, report_interval_s=300.0)
    await node.feed.begin()
    fake.status = 503
    before = fake.asked.count("/v1/feed/revisions")
    node.run()
    await asyncio.sleep(1.5)
    assert 0 < fake.asked.count("/v1/feed/revisions") - before < 20


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (200, b"<html>a login page</html>", "is none of a rules service"),
        (200, b'{"incarnation": 7}', "is none of a rules service"),
        (200, b"\xff\xfe", "is none of a rules service"),
        (302, b"", "answered 302"),
        (401, b"{}", "does not know the token"),
        (403, b'{"detail": "that of gw-7"}', r"not one of this node \(403\): that of gw-7"),
        (500, b"it is broken", "answered 500: it is broken"),
        (503, b'{"title": "busy", "detail": "the database is away"}', "answered 503: the database is away"),
    ],
)
async def test_what_is_no_answer(fake, client, status, answer, said):
    """Whatever is no answer of a rules service is said in words, and nothing of it is used."""
    fake.status, fake.answers["/v1/feed/revisions"] = status, answer
    with pytest.raises(FeedError, match=said):
        await client.revisions()
    assert client.failed == 1


async def test_an_answer_without_end(fake, client, monkeypatch):
    """An answer above the bound is given up, whatever it says of its length."""
    monkeypatch.setattr(client_module, "FEED_ANSWER_BYTES_MAX", 1_000)
    fake.answers["/v1/feed/snapshot"] = b" " * 2_000
    with pytest.raises(FeedError, match="more than 1000 bytes"):
        await client.snapshot()


async def test_a_service_that_nobody_runs(client, fake):
    """A refused connection is said with the path that was asked."""
    closed = FeedClient(FeedSettings(url="http://127.0.0.1:9", token="a-token-of-the-nodes"))
    with pytest.raises(FeedError, match="/v1/feed/lists"):
        await closed.lists(0)
    await closed.close()


async def test_a_service_that_was_set_back(fake, make_node, until):
    """A service with less than the node has, in the same life of its database, is not believed, and the node says so."""
    told = Revisions("fake", 7)
    fake.answers |= {"/v1/feed/revisions": told, "/v1/feed/snapshot": Snapshot(told, RulesDocument(7, "", RULES))}
    node = make_node(fake.url)
    await node.feed.begin()
    node.run()
    assert node.limiter.version == 7
    old = Revisions("fake", 5)
    fake.answers |= {"/v1/feed/revisions": old, "/v1/feed/snapshot": Snapshot(old, RulesDocument(5, "", RULES))}
    await until(lambda: node.node.standing.is_set_back)
    assert node.node.detail()["set_back"] is True
    assert node.limiter.version == 7
    adopted = Revisions("new", 5)
    fake.answers |= {"/v1/feed/revisions": adopted, "/v1/feed/snapshot": Snapshot(adopted, RulesDocument(5, "", RULES))}
    await until(lambda: node.limiter.version == 5)
    assert not node.node.standing.is_set_back


async def test_too_many_entries(fake, make_node, until, monkeypatch):
    """A list that does not fit into the node leaves the one before in service; the node says why, and its rules go on to change."""
    node = make_node(fake.url)
    await node.feed.begin()
    node.run()
    monkeypatch.setattr("sluicegate.limiter.lists.LIST_ENTRIES_MAX", 1)
    told = Revisions("fake", 2, 0, 3)
    entries = [["block", "user", "a"], ["block", "user", "b"]]
    page = {"incarnation": "fake", "since": 0, "revision": 3, "full": True, "put": entries, "remove": []}
    fake.answers |= {
        "/v1/feed/revisions": told,
        "/v1/feed/lists": msgspec.json.encode(page),
        "/v1/feed/snapshot": Snapshot(told, RulesDocument(2, "", RULES)),
    }
    await until(lambda: node.limiter.version == 2 and node.node.lists.error)
    assert "at most 1 fit" in node.node.lists.error
    assert len(node.limiter.lists) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "ftp://host"}, "want http"),
        ({"url": "http://"}, "want http"),
        ({"url": "http://user:pass@host"}, "no user, password"),
        ({"url": "http://rules.example:8090"}, "in the clear: use https, or say --control-allow-plaintext"),
        ({"token": None}, "needs --control-token"),
        ({"token": "two words"}, "--control-token is empty"),
        ({"ca": "x"}, "are for a --control-url of https"),
        ({"key": "x"}, "belong together"),
        ({"report_interval_s": 0.1}, "--report-interval must be 1 to 300"),
        ({"node": "x" * 257}, "at most 256"),
    ],
)
def test_settings_that_contradict_each_other(given, said):
    """Bad values are told by their flag, without the secrets they hold."""
    with pytest.raises(ConfigurationError, match=said) as raised:
        FeedSettings(**({"url": "http://127.0.0.1:1", "token": "a-token-of-the-nodes"} | given))
    assert "pass@" not in str(raised.value)
    assert "two words" not in str(raised.value)
