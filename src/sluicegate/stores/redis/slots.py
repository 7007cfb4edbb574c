"""Which server of a cluster has which hash slot: what its replies say, and when to ask again. No input or output.

A key's slot is the CRC-16 (XMODEM) of its hash tag, modulo 16,384 (Redis Cluster specification). A map is a picture of one moment:
whoever uses an old one is told so by MOVED, which corrects one slot at once and makes a new picture due.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from sluicegate.bounds import PORT_MAX, REDIS_CLUSTER_REFRESH_US
from sluicegate.stores.redis.addresses import Address

__all__ = ["SLOTS", "Redirect", "Refresh", "SlotMap", "redirect_of", "slot_of"]

SLOTS: Final = 16_384


def slot_of(key: str | bytes) -> int:
    """The hash slot of a key: of what stands between its first brace and the next closing one, else of the whole key."""
    name = key.encode() if isinstance(key, str) else key
    start = name.find(b"{")
    if start >= 0:
        end = name.find(b"}", start + 1)
        if end > start + 1:
            name = name[start + 1 : end]
    return crc_hqx(name, 0) % SLOTS


class Redirect(NamedTuple):
    """A server's reply that another has the slot: for good (``asking`` False) or, while it moves, for this one command."""

    asking: bool
    slot: int
    address: Address


def redirect_of(text: str, asked: Address) -> Redirect | None:
    """What an error reply of the server at ``asked`` says about the place of a slot; None where it says nothing usable.

    ``MOVED 3999 127.0.0.1:6381``; the host may be an IPv6 address without brackets, and an empty one is the host that was asked.
    """
    word, _, rest = text.partition(" ")
    slot, _, where = rest.partition(" ")
    host, _, port = where.strip().rpartition(":")
    if word not in ("MOVED", "ASK") or not (slot.isdecimal() and port.isdecimal()) or host == "?":
        return None
    address = Address(host.strip("[]") or asked.host, int(port))
    if not (int(slot) < SLOTS and 1 <= address.port <= PORT_MAX):
        return None
    return Redirect(word == "ASK", int(slot), address)


class SlotMap:
    """Who has which slot. ``masters`` and ``replicas``: the servers of the picture it began with, each once.

    A map is changed only by ``move``; a new picture is a new map.
    """

    __slots__ = ("_owners", "masters", "replicas")

    def __init__(self) -> None:
        self._owners: list[Address | None] = [None] * SLOTS
        self.masters: tuple[Address, ...] = ()
        self.replicas: tuple[Address, ...] = ()

    @classmethod
    def parse(cls, reply: object, asked: Address) -> SlotMap:
        """The map in a reply to CLUSTER SLOTS of the server at ``asked``, strings as bytes. Raises ValueError for anything else.

        A server without a host, or with an empty one, is on the host that was asked; one named ``?`` is where its metadata says.
        """
        found = cls()
        masters: dict[Address, None] = {}
        replicas: dict[Address, None] = {}
        try:
            for first, last, master, *others in _lists(reply):
                address = _server(master, asked)
                if not 0 <= first <= last < SLOTS:
                    raise ValueError(f"slots {first} to {last} are no slots of a cluster")
                found._owners[first : last + 1] = [address] * (last + 1 - first)
                if address is not None:
                    masters[address] = None
                replicas |= dict.fromkeys(known for other in others if (known := _server(other, asked)) is not None)
        except (TypeError, LookupError) as error:
            raise ValueError(f"the reply to CLUSTER SLOTS cannot be read ({error})") from None
        found.masters = tuple(masters)
        found.replicas = tuple(address for address in replicas if address not in masters)
        return found

    def owner(self, slot: int) -> Address | None:
        """The master of a slot; None where nobody is known to have it."""
        return self._owners[slot]

    def move(self, slot: int, address: Address) -> None:
        """Take note that a slot is elsewhere, as MOVED says."""
        self._owners[slot] = address

    @property
    def covered(self) -> int:
        """How many slots somebody has."""
        return SLOTS - self._owners.count(None)


def _lists(reply: object) -> Iterable[Sequence[Any]]:
    if not isinstance(reply, list):
        raise TypeError(f"want a list, got {type(reply).__name__}")
    return reply


def _server(entry: Sequence[Any], asked: Address) -> Address | None:
    host, port = entry[0], entry[1]
    if not isinstance(port, int) or not 1 <= port <= PORT_MAX:
        raise ValueError(f"port: want 1 to {PORT_MAX}, got {port!r}")
    if host is not None and not isinstance(host, bytes):
        raise TypeError(f"a host is a text, got {type(host).__name__}")
    name = "" if host is None else host.decode()
    if name == "?":
        # The server is to be called by a host name and has none; what else is known of it stands behind.
        more = entry[3] if len(entry) > 3 else []
        name = dict(zip(more[::2], more[1::2], strict=False)).get(b"ip", b"").decode()
        return Address(name, port) if name else None
    return Address(name or asked.host, port)


class Refresh:
    """When a new picture is asked for: on signs of change, at most every ``REDIS_CLUSTER_REFRESH_US``. One at a time.

    Without a sign an old map does no harm: every slot that moved is such a sign when it is used. Times are monotonic.
    """

    __slots__ = ("_began_us", "_wanted", "running")

    def __init__(self) -> None:
        self._began_us: int | None = None
        self._wanted = True
        self.running = False

    def want(self) -> None:
        """There is a sign of change: MOVED, a lost connection, a slot that nobody has."""
        self._wanted = True

    def due(self, now_us: int) -> bool:
        """Whether to ask now."""
        if self.running or not self._wanted:
            return False
        return self._began_us is None or now_us - self._began_us >= REDIS_CLUSTER_REFRESH_US

    def begin(self, now_us: int) -> None:
        """It is being asked for. A sign that comes from now on makes another due, since the picture may be older than it."""
        self._began_us = now_us
        self._wanted = False
        self.running = True

    def end(self, *, found: bool) -> None:
        """The picture came, or (``found`` False) did not and stays wanted."""
        self.running = False
        self._wanted = self._wanted or not found
