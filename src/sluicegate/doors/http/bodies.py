"""Bodies of ``/v1/check/batch`` and ``/v1/refund``. Whatever is wrong raises InvalidRequest with the field's name."""

from __future__ import annotations

from typing import Final

import msgspec

from sluicegate.bounds import BATCH_MAX, KEY_BYTES_MAX
from sluicegate.doors.http.bad_json import decode, refuse_duplicates
from sluicegate.errors import InvalidRequest

__all__ = ["decision_id_of", "items_of"]


class _Refund(msgspec.Struct, forbid_unknown_fields=True):
    decision_id: str


_decode_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_refund: Final = msgspec.json.Decoder(_Refund).decode


def items_of(body: bytes) -> list[bytes]:
    """The JSON text of each item of a batch, in order; at most ``BATCH_MAX``."""
    items = decode(_decode_items, body, {})
    if len(items) > BATCH_MAX:
        raise InvalidRequest("", f"the batch has {len(items)} items, at most {BATCH_MAX} are taken")
    return [bytes(item) for item in items]


def decision_id_of(body: bytes) -> str:
    """What a refund names."""
    refund = decode(_decode_refund, body, {"decision_id": "decision_id"})
    refuse_duplicates(body)
    if not 0 < len(refund.decision_id) <= KEY_BYTES_MAX:
        raise InvalidRequest("decision_id", "is no id that a decision carried")
    return refund.decision_id
