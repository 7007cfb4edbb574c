"""What a consumer did."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ConsumerStats"]


@dataclass(slots=True)
class ConsumerStats:
    """Counts since the consumer was made. Written by its thread, read from any.

    ``messages``, ``bytes``: read, those read twice included. ``batches``, ``decisions``: put into the home, those that it had before included. ``blocks``: put into
    the home and committed. ``dead``: messages that no home can keep; ``dead_unkept``: of these, the ones that could not be put with the dead letters
    either. ``missing``: offsets that were gone when it was their turn: deleted before they were read. ``home_errors``, ``kafka_errors``: attempts that
    failed. ``partitions``: that it reads now. ``lag``: messages of these that it has not put into the home; None while not known.
    ``last_us``: when a block was last put into the home, ``told_until_us``: the end of the latest interval that it has told the home of; 0: none.
    ``well``: False since an attempt at the home or at Kafka failed, until one succeeds.
    """

    messages: int = 0
    bytes: int = 0
    batches: int = 0
    decisions: int = 0
    blocks: int = 0
    dead: int = 0
    dead_unkept: int = 0
    missing: int = 0
    home_errors: int = 0
    kafka_errors: int = 0
    partitions: int = 0
    lag: int | None = None
    last_us: int = 0
    told_until_us: int = 0
    well: bool = True
