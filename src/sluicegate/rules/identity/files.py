"""Reading the files a server depends on: whole, bounded, never on a request, and without ever waiting."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, TypeAlias

from sluicegate.errors import ConfigurationError

__all__ = ["Signature", "open_regular", "read_file", "signature_if_there", "signature_of"]

Signature: TypeAlias = tuple[int, int, int, int, int]


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


def read_file(path: Path, bytes_max: int, what: str = "") -> bytes:
    """The content of a file of at most ``bytes_max`` bytes; raises ConfigurationError naming the path, and ``what`` unless it is empty."""
    named = f"the {what} {str(path)!r}" if what else repr(str(path))
    try:
        with open_regular(path) as file:
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {named}: {error.strerror or error}") from error
    if len(content) > bytes_max:
        raise ConfigurationError(f"{named} is larger than {bytes_max} bytes")
    return content


def signature_of(path: Path) -> Signature:
    """What is another when a file was written, replaced, or given other rights. Raises OSError.

    Two changes within one tick of the file system's clock may look like one.
    """
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns)


def signature_if_there(path: Path) -> Signature | None:
    """``signature_of``; None where it cannot be had."""
    try:
        return signature_of(path)
    except OSError:
        return None
