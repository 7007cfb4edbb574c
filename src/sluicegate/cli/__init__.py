"""The command ``sluicegate``. Importing this package loads no optional dependency."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from sluicegate.errors import MissingExtra

__all__ = ["main"]

_SERVER_MODULES = {"click", "rich", "uvloop", "httptools", "prometheus_client"}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 1 the answer is no (refused, invalid, differs), 2 bad usage or configuration.

    ``arguments`` is None for those of the process. Without the extra ``server`` this says what to install.
    """
    try:
        from sluicegate.cli.root import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _SERVER_MODULES:
            raise
        print(f"sluicegate: {MissingExtra('server', 'the command line')}", file=sys.stderr)
        sys.exit(2)
    sys.exit(run(arguments))
