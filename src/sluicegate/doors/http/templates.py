"""Batches whose items differ in nothing but their key.

A caller that batches sends items of one shape, ``{"key":"…","cost":1,"policy":{…}}``, again and again. Once such a shape is
known, cutting a batch at what precedes the keys, which is short and the same in every item, leaves one *piece* per item:
the key, the rest of the item and the comma. Pieces are remembered with the counter's key they stand for.

That is exact, although nothing is parsed: a piece is used only if its item was read as a JSON object before and found to be
a plain check of the shape's policy and cost. Such objects, joined by commas in brackets, are the array of just them. A cut
in a wrong place leaves pieces that make no such item; then the batch is read in another way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from sluicegate.bounds import BATCH_MAX, CHECKS_MEMO_MAX, TEMPLATE_PIECE_BYTES_MAX, TEMPLATES_MAX
from sluicegate.doors.http.memo import Memo
from sluicegate.doors.http.policies import InlinePolicy

__all__ = ["PlainBatch", "Template", "Templates"]

_KEY: Final = re.compile(rb'"key"[ \t\r\n]*:[ \t\r\n]*"([^"\\]*)"')


class PlainBatch(NamedTuple):
    """Plain checks of one policy and one cost, by the whole keys of their counters."""

    policy: InlinePolicy
    keys: list[str]
    cost: int


class Template(NamedTuple):
    """One shape: what precedes and follows a key in its item, and what all items mean."""

    before: bytes
    """Pieces are cut here: many times faster than at all that is constant between two keys, because it is short."""
    after: bytes
    comma: bytes
    policy: InlinePolicy
    cost: int
    keys: Memo[str]
    """Whole counter keys by piece; each was read once as an item."""

    def pieces(self, batch: bytes) -> list[bytes] | None:
        """The batch cut at this shape; None where it does not begin and end like it."""
        before = self.before
        if not (batch.startswith(before, 1) and batch.endswith(self.after, 0, -1) and batch[:1] + batch[-1:] == b"[]"):
            return None
        return (batch[1 + len(before) : -1] + self.comma).split(before, BATCH_MAX)


class Templates:
    """The shapes seen lately. ``read`` gives (policy, whole key, cost) of one item, None where it is not plain."""

    def __init__(self, read: Callable[[bytes], tuple[InlinePolicy, str, int] | None]) -> None:
        self._read = read
        self._known: list[Template] = []
        self._candidate: tuple[bytes, bytes, bytes] | None = None

    def match(self, batch: bytes) -> PlainBatch | None:
        """The checks of a JSON array whose items all have a known shape; None: read it in another way."""
        for template in self._known:
            pieces = template.pieces(batch)
            if pieces is None:
                continue
            keys = list(map(template.keys.young.get, pieces))
            if None in keys:
                keys = [self._key(template, piece) for piece in pieces]
                if None in keys:
                    continue
            if len(keys) <= BATCH_MAX:
                return PlainBatch(template.policy, cast("list[str]", keys), template.cost)
        return None

    def notice(self, item: bytes, comma: bytes, policy: InlinePolicy, cost: int) -> None:
        """Learn the shape of a batch that was read in another way, whose items are all plain and of one policy and cost.

        Only a shape that comes twice in a row is worth a place; callers that change it all the time would push out others.
        """
        match = _KEY.search(item)
        if match is None:
            return
        shape = (item[: match.start(1)], item[match.end(1) :], comma)
        if shape != self._candidate:
            self._candidate = shape
            return
        self._candidate = None
        before, after, _ = shape
        keys: Memo[str] = Memo(CHECKS_MEMO_MAX, TEMPLATE_PIECE_BYTES_MAX)
        self._known.insert(0, Template(before, after, comma, policy, cost, keys))
        del self._known[TEMPLATES_MAX:]

    def _key(self, template: Template, piece: bytes) -> str | None:
        key = template.keys.recall(piece)
        if key is None and piece.endswith(template.after + template.comma):
            read = self._read(template.before + piece.removesuffix(template.comma))
            if read is not None and read[0] is template.policy and read[2] == template.cost:
                key = read[1]
                template.keys.remember(piece, key)
        return key
