"""Reading the files a server depends on: whole, bounded, never on a request, and without ever waiting."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from sluicegate.errors import ConfigurationError

__all__ = ["open_regular", "read_file"]


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it; raises OSError (EINVAL) for a pipe, a device and the like.

    Opening a pipe waits until somebody writes to it. A server that watches its files would then never see another edit
    and could not be stopped, so what is no regular file is refused and the opening itself never waits.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_file(path: Path, bytes_max: int, what: str) -> bytes:
    """The content of a file of at most ``bytes_max`` bytes; raises ConfigurationError naming ``what`` and the path."""
    try:
        with open_regular(path) as file:
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read the {what} {str(path)!r}: {error.strerror or error}") from error
    if len(content) > bytes_max:
        raise ConfigurationError(f"the {what} {str(path)!r} is larger than {bytes_max} bytes")
    return content
