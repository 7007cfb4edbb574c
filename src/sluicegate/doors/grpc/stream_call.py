"""One call of a connection of ngh2: what is known of it, and the ways to answer it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluicegate.doors.connections import NEVER_S
from sluicegate.doors.grpc.heads import Head

if TYPE_CHECKING:
    from sluicegate.doors.grpc.protocol import GrpcProtocol

__all__ = ["StreamCall"]


class StreamCall:
    """One call. ``deadline_s``: loop time after which its client does not wait any more. ``body``: as much as has come. ``pending``: how much of
    that came in pieces, and counts for its connection. ``ended``: the request is complete. ``is_answering``: a message was sent, and more may be.
    """

    __slots__ = (
        "_protocol", "began_s", "body", "deadline_s", "ended", "head", "is_answering", "pending", "stream_id",
    )  # fmt: skip

    def __init__(self, protocol: GrpcProtocol, stream_id: int, head: Head, began_s: float) -> None:
        self._protocol = protocol
        self.stream_id = stream_id
        self.head = head
        self.began_s = began_s
        self.deadline_s = NEVER_S
        self.body: bytes | bytearray = b""
        self.ended = False
        self.is_answering = False
        self.pending = 0

    @property
    def is_gone(self) -> bool:
        """Whether its client has given it up, or it has ended."""
        return not self._protocol.has(self)

    def answer(self, message: bytes) -> None:
        """See ``calls.Call``."""
        self._protocol.answer(self, message)

    def fail(self, code: int, detail: str) -> None:
        """See ``calls.Call``."""
        self._protocol.fail(self, code, detail)

    def tell(self, message: bytes) -> None:
        """Answer with this message and go on."""
        self._protocol.tell(self, message)

    def finish(self) -> None:
        """End it with OK, after its messages."""
        self._protocol.fail(self, 0, "")
