"""Performs operations for threads: sends to all servers, then reads from each, within one deadline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from sluicegate.bounds import REDIS_UNDO_DIVISOR
from sluicegate.errors import StoreError
from sluicegate.stores.base import Answer, Request
from sluicegate.stores.redis.calls import Steps, Undo
from sluicegate.stores.redis.core import Core, closed_error, unsendable
from sluicegate.stores.redis.faults import CONNECT_ANEW, OF_THE_SERVER
from sluicegate.stores.redis.link import Link, ReplyError, packed
from sluicegate.stores.redis.node import Node
from sluicegate.stores.redis.packing import Command
from sluicegate.stores.redis.riders import Rider, Words
from sluicegate.stores.redis.router import SingleRouter

__all__ = ["SyncDriver"]

R = TypeVar("R")


class _Sent:
    """A command under way; ``place`` is where its reply goes."""

    __slots__ = ("asking", "command", "group", "in_full", "node", "place", "resends")

    def __init__(self, place: int, command: Command, group: int) -> None:
        self.place = place
        self.command = command
        self.group = group
        self.node: Node | None = None
        self.asking = False
        self.in_full = False
        self.resends = 0


class _Exchange:
    """What goes to one server on one connection."""

    __slots__ = ("began_us", "link", "node", "riders", "sent", "wanted")

    def __init__(self, node: Node, link: Link, riders: list[Rider], sent: list[_Sent], began_us: int) -> None:
        self.node = node
        self.link = link
        self.riders = riders
        self.sent = sent
        self.began_us = began_us
        self.wanted = 0
        """So many replies are due."""

    def words(self) -> list[Words]:
        """The commands in the order of their replies."""
        found = [rider.words() for rider in self.riders]
        for sent in self.sent:
            if sent.asking:
                found.append((b"ASKING",))
            found.append(sent.command.parts_in_full() if sent.in_full else sent.command.parts())
        return found


class SyncDriver:
    """Runs ``Steps`` to their end. Safe from any thread."""

    __slots__ = ("_core", "_only")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._only: Node | None = None
        """The server of a store that is one: nothing is to be routed."""
        if isinstance(core.router, SingleRouter):
            self._only = core.router.node_of(0)

    def quick(self, request: Request, *, peek: bool) -> Answer | None:
        """``decide_one`` in its usual course, written out: one server that is up, an idle connection, no rider due.

        None where it is not so, or where the server certainly did nothing: then the steps are performed, which say the same at length.
        """
        core, node = self._core, self._only
        if node is None or core.closed or not (core.subjects.ready and node.breaker.closed and node.links.has_idle):
            return None
        began_us = core.clock.monotonic_us()
        if began_us >= core.riders.next_us:
            return None
        try:
            command = core.packing.decide((request,), peek=peek)
            data = packed((command.parts(),))
        except Exception:  # noqa: BLE001
            # What cannot be sent is told where it is performed.
            return None
        reply = self._exchange_one(node, command, data, began_us)
        if reply is None:
            return None
        answers = core.packing.decided((request,), reply, peek=peek).answers
        if answers is None:
            return None
        (answer,) = answers
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def _exchange_one(self, node: Node, command: Command, data: bytes, began_us: int) -> bytes | None:
        """The reply to one command; None where it was certainly not done and is to be performed anew. Raises StoreError."""
        core = self._core
        deadline_us = began_us + core.timeout_us
        link = node.links.take(deadline_us)
        core.stats.calls += 1
        found: list[Any] = []
        try:
            link.send(data, deadline_us, core.clock)
            link.receive(found, 1, deadline_us, core.clock)
            (reply,) = found
            if type(reply) is ReplyError:
                error = core.after_error(_Sent(0, command, 0), node, reply, began_us)
                if error is None:
                    return None
                link.broken = link.broken or error.code in CONNECT_ANEW
                raise error
        except OSError as problem:
            raise node.lost(began_us, problem) from None
        finally:
            node.links.give(link)
        if not node.breaker.calm:
            node.breaker.succeeded()
        return cast("bytes", reply)

    def perform(self, steps: Steps[R]) -> R:
        """Send what ``steps`` yields, all within the deadline of one decision."""
        core = self._core
        deadline_us = core.clock.monotonic_us() + core.timeout_us
        if core.closed:
            raise closed_error()
        if not core.ready:
            core.await_ready(deadline_us)
        try:
            commands = next(steps)
            while True:
                until_us = deadline_us
                if isinstance(commands, Undo):
                    until_us = max(until_us, core.clock.monotonic_us() + core.timeout_us // REDIS_UNDO_DIVISOR)
                commands = steps.send(self.ask(commands, until_us))
        except StopIteration as done:
            result: R = done.value
            return result

    def ask(self, commands: Sequence[Command], deadline_us: int) -> list[Any]:
        """One reply or StoreError per command."""
        group_of_key = self._core.router.group_of_key
        replies: list[Any] = [None] * len(commands)
        sending: list[_Sent] = []
        for place, command in enumerate(commands):
            try:
                sending.append(_Sent(place, command, group_of_key(command.keys[0] if command.keys else b"")))
            except Exception as problem:  # noqa: BLE001
                replies[place] = unsendable(problem)
        while sending:
            again: list[_Sent] = []
            open_: list[_Exchange] = []
            try:
                for node, sent in self._by_node(sending, replies):
                    exchange = self._send(node, sent, replies, deadline_us)
                    if exchange is not None:
                        open_.append(exchange)
                for exchange in open_:
                    self._receive(exchange, replies, again, deadline_us)
            finally:
                # One that was not read to its end is broken, and is closed.
                for exchange in open_:
                    exchange.node.links.give(exchange.link)
            sending = again
        return replies

    def _by_node(self, sending: list[_Sent], replies: list[Any]) -> list[tuple[Node, list[_Sent]]]:
        """The commands by server, each with the error of a server that is not known as its reply."""
        router = self._core.router
        if len(sending) == 1:
            # The usual case.
            try:
                return [(sending[0].node or router.node_of(sending[0].group), sending)]
            except StoreError as error:
                replies[sending[0].place] = error
                return []
        found: dict[int, tuple[Node, list[_Sent]]] = {}
        for sent in sending:
            try:
                node = sent.node or router.node_of(sent.group)
            except StoreError as error:
                replies[sent.place] = error
                continue
            found.setdefault(id(node), (node, []))[1].append(sent)
        # What has to wait for a connection goes last, so that the other servers work meanwhile.
        return sorted(found.values(), key=lambda pair: not pair[0].links.has_idle)

    def _send(self, node: Node, sent: list[_Sent], replies: list[Any], deadline_us: int) -> _Exchange | None:
        """Send to one server; None where nothing is to be read, and the replies are errors then."""
        core = self._core
        error = node.refusal()
        if error is None:
            try:
                link = node.links.take(deadline_us)
            except StoreError as found:
                error = found
        if error is not None:
            core.router.after_failure(node)
            for one in sent:
                replies[one.place] = error
            return None
        began_us = core.clock.monotonic_us()
        riders = core.riders_for(node) if began_us >= core.riders.next_us else []
        exchange = _Exchange(node, link, riders, sent, began_us)
        try:
            words = exchange.words()
            data = packed(words)
        except Exception as problem:  # noqa: BLE001
            # What cannot be packed (a key that is no text) is no fault of the server; nothing was sent.
            node.links.give(link)
            error = unsendable(problem)
            for one in sent:
                replies[one.place] = error
            return None
        exchange.wanted = len(words)
        core.stats.calls += len(words)
        try:
            link.send(data, deadline_us, core.clock)
        except OSError as problem:
            node.links.give(link)
            self._lose(exchange, sent, replies, problem)
            return None
        except BaseException:
            node.links.give(link)
            raise
        return exchange

    def _lose(self, exchange: _Exchange, sent: list[_Sent], replies: list[Any], problem: OSError) -> None:
        """Whether these were done is not known, so they are not sent again."""
        error = exchange.node.lost(exchange.began_us, problem)
        self._core.router.after_failure(exchange.node)
        for one in sent:
            replies[one.place] = error

    def _receive(self, exchange: _Exchange, replies: list[Any], again: list[_Sent], deadline_us: int) -> None:
        """Read the replies of one server; what is to be sent again is added to ``again``."""
        core, node, sent = self._core, exchange.node, exchange.sent
        found: list[Any] = []
        problem: OSError | None = None
        try:
            exchange.link.receive(found, exchange.wanted, deadline_us, core.clock)
        except OSError as error:
            problem = error
        came = iter(found)
        fault: StoreError | None = None
        for rider in exchange.riders:
            reply = next(came, self)
            if reply is not self:
                fault = core.learn(rider, reply) or fault
        healthy = problem is None
        for position, one in enumerate(sent):
            if one.asking:
                next(came, None)
            reply = next(came, self)
            if reply is self:
                assert problem is not None
                self._lose(exchange, sent[position:], replies, problem)
                break
            if fault is not None:
                # Whatever it says: it was asked under keys that are not to be used, and is not sent again under them.
                replies[one.place] = fault
                continue
            if type(reply) is ReplyError:
                error_found = core.after_error(one, node, reply, exchange.began_us)
                if error_found is None:
                    again.append(one)
                    continue
                reply = error_found
                if error_found.code in CONNECT_ANEW:
                    exchange.link.broken = True
                healthy = healthy and error_found.code not in OF_THE_SERVER
            replies[one.place] = reply
        if healthy and not node.breaker.calm:
            node.breaker.succeeded()
