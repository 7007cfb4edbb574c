"""Run a program that ends when its parent does: ``with_parent.py PARENT PROGRAM ARGUMENT...``.

A program that is not ours cannot watch a pipe, so the kernel is asked (Linux, ``prctl(2)``) to send it SIGTERM at the death of its parent, whatever that
died of. The request survives ``execve``. This runs as a script, between fork and the program, because code between the two inside the
parent could meet a lock that one of its threads holds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main(parent: str, program: str, *arguments: str) -> None:
    """Become the program; exit status 3 where the parent is gone already or the kernel will not."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        sys.exit("prctl(PR_SET_PDEATHSIG) is refused: the program could outlive its parent")
    # A parent that died before the line above would never be heard of.
    if os.getppid() != int(parent):
        sys.exit(3)
    os.execv(program, [program, *arguments])  # noqa: S606 - the caller names a program of ours


if __name__ == "__main__":
    main(*sys.argv[1:])
