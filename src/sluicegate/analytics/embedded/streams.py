"""Which batches were kept: by ranges of their numbers, so that a hundred thousand of a day are one row and are known for ever.

A batch's id is ``NODE/INCARNATION/NUMBER``. Numbers of one stream come nearly in order, and what was dropped leaves a gap, which is one row more.
"""

from __future__ import annotations

import sqlite3
from typing import Final

__all__ = ["note"]

_LARGEST: Final = 2**63 - 2


def note(connection: sqlite3.Connection, batch_id: str) -> bool:
    """Note that this batch is kept; False where it was before. Inside the transaction that keeps it."""
    stream, number = _parts(batch_id)
    before = connection.execute(
        "SELECT first, last FROM told WHERE stream = ? AND first <= ? ORDER BY first DESC LIMIT 1", (stream, number)
    ).fetchone()
    if before is not None and before[1] >= number:
        return False
    after = connection.execute("SELECT last FROM told WHERE stream = ? AND first = ?", (stream, number + 1)).fetchone()
    first, last = number, number
    if after is not None:
        last = after[0]
        connection.execute("DELETE FROM told WHERE stream = ? AND first = ?", (stream, number + 1))
    if before is not None and before[1] == number - 1:
        first = before[0]
        connection.execute("UPDATE told SET last = ? WHERE stream = ? AND first = ?", (last, stream, first))
    else:
        connection.execute("INSERT INTO told VALUES (?, ?, ?)", (stream, first, last))
    return True


def _parts(batch_id: str) -> tuple[str, int]:
    """Stream and number. An id of another form is a stream of its own: it does not end in "/", as all others do."""
    stream, slash, digits = batch_id.rpartition("/")
    if slash and digits.isascii() and digits.isdecimal() and len(digits) <= 19:
        number = int(digits)
        # Written in one way only: "7" and "07" are two ids.
        if number <= _LARGEST and str(number) == digits:
            return f"{stream}/", number
    return f"{batch_id}#", 0
