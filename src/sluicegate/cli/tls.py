"""Flags of TLS: certificates for all listeners of a command, and what is different for one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sluicegate.app.tls import TlsFiles, tls_files
from sluicegate.cli.options import option
from sluicegate.doors.listen import Address, named

__all__ = ["TlsType", "general_tls_options", "listener_tls_option", "tls_of"]

Function = TypeVar("Function", bound=Callable[..., Any])

_PATH: Final = click.Path(path_type=Path)
_KEYS: Final = ("cert", "key", "client-ca")


class TlsType(click.ParamType):  # type: ignore[type-arg]  # not generic in all releases we accept
    """``off``, or ``cert=FILE,key=FILE,client-ca=FILE`` with one or more of the three, as a dictionary; ``off`` is an empty one."""

    name = "tls"
    takes_off = True

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        if isinstance(value, dict):
            return value
        if value is False or value == "off":
            return {}
        found: dict[str, str] = {}
        for part in str(value).split(","):
            key, equals, path = part.partition("=")
            if key not in _KEYS or not equals or key in found:
                self.fail(f"{part!r}: want off, or cert=FILE,key=FILE,client-ca=FILE, each at most once", param, ctx)
            found[key] = path
        return found


def general_tls_options() -> tuple[Callable[[Function], Function], ...]:
    """Of all listeners of a command."""
    return (
        option("tls-cert", type=_PATH, metavar="FILE", help="Certificate of the listeners, with its chain (PEM)."),
        option("tls-key", type=_PATH, metavar="FILE", help="Key of the certificate."),
        option(
            "tls-client-ca", type=_PATH, metavar="FILE", help="Authorities that clients' certificates must come from."
        ),
    )


def listener_tls_option(listener: str) -> Callable[[Function], Function]:
    """What is different for one listener."""
    return option(
        f"{listener}-tls",
        type=TlsType(),
        metavar="off|cert=FILE,...",
        help=f"TLS of --{listener}: off, or cert=, key= and client-ca= in place of --tls-*; an empty client-ca= asks for none.",
    )


def tls_of(values: Mapping[str, Any], listeners: Iterable[str]) -> dict[str, TlsFiles]:
    """The certificates of each of these listeners that is opened, by name; raises ConfigurationError naming the flag at fault.

    A Unix socket has TLS only where its own flag says so: who connects to it is on this machine.
    """
    general = {key: values.get(f"tls_{key.replace('-', '_')}") for key in _KEYS}
    found = {}
    for name in listeners:
        address, own = values.get(name), values.get(f"{name}_tls")
        if not isinstance(address, Address) or own == {} or (own is None and address.path is not None):
            continue
        if own is None:
            files = tls_files(general["cert"], general["key"], general["client-ca"])
        else:
            chosen = {**general, **{key: Path(path) if path else None for key, path in own.items()}}
            with named(f"{name}-tls"):
                files = tls_files(chosen["cert"], chosen["key"], chosen["client-ca"])
        if files is not None:
            found[name] = files
    return found
