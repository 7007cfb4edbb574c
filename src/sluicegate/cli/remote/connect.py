"""How a command finds the rules service it speaks to, and what it has in hand while it does."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from sluicegate.bounds import TOKEN_BYTES_MAX
from sluicegate.cli.options import DurationType, config_option, flag, option
from sluicegate.cli.remote.offline import interface
from sluicegate.cli.remote.render import print_json
from sluicegate.errors import ConfigurationError, without_login

if TYPE_CHECKING:
    from sluicegate.cli.client import Answer, Client

__all__ = ["Session", "call", "changing", "connected", "connection_options", "limited"]

Function = TypeVar("Function", bound=Callable[..., Any])

_PATH: Final = click.Path(path_type=Path)
_LOCAL: Final = "http://localhost"
_PAGE: Final = 500
_GIVEN: Final = ("server", "token", "token_file", "ca", "cert", "key", "data", "db", "timeout", "allow_plaintext")


@dataclass(frozen=True, slots=True)
class Session:
    """One command at work. ``as_json``: print data for programs. ``reason`` and ``dry_run`` belong to commands that change something.

    ``is_local``: the database is changed directly, whether or not a service runs on it.
    """

    client: Client
    as_json: bool = False
    reason: str = ""
    dry_run: bool = False
    is_local: bool = False

    async def get(self, path: str, **params: str) -> Answer:
        """Ask for something; parameters that are "" are left out."""
        return await self.client.ask("GET", path, params=_given(params))

    async def found(self, path: str) -> Answer | None:
        """As ``get``; None where it does not exist."""
        from sluicegate.cli.client import Refusal

        try:
            return await self.get(path)
        except Refusal as error:
            if error.status == 404:
                return None
            raise

    async def change(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        match: str = "",
        is_new: bool = False,
        params: Mapping[str, str] | None = None,
        **sent: Any,
    ) -> Answer:
        """Change something, or with ``dry_run`` only ask whether it could be.

        ``match``: the entity tag it was made from, "" for none; ``is_new``: it must not exist yet. A parameter that is "" is sent as that.
        """
        headers = {"If-None-Match": "*"} if is_new else {}
        if match:
            headers["If-Match"] = match
        if self.reason:
            headers["X-Reason"] = self.reason
        told = {**(params or {}), **({"validate_only": "true"} if self.dry_run else {})}
        return await self.client.ask(method, path, params=told, body=body, headers=headers, **sent)

    async def rows(self, path: str, field: str, limit: int, **params: str) -> list[dict[str, Any]]:
        """Up to ``limit`` rows of a list; what is left out is said on standard error."""
        return [row async for page in self.pages(path, field, limit, **params) for row in page.data[field]]

    async def pages(self, path: str, field: str, limit: int | None = None, **params: str) -> AsyncIterator[Answer]:
        """As ``rows``, the pages that they come in; ``limit`` None: of all."""
        left, token = limit, ""
        while True:
            size = _PAGE if left is None else min(_PAGE, left)
            page = await self.get(path, page_size=str(size), page_token=token, **params)
            yield page
            token = page.data["next_page_token"]
            if not token:
                return
            if left is not None:
                left -= len(page.data[field])
                if left <= 0:
                    click.echo(f"there are more than {limit}; --limit shows them", err=True)
                    return

    def show(self, data: Any, people: Callable[[], None]) -> None:
        """Print data for programs, or else what ``people`` prints."""
        if self.as_json:
            print_json(data)
        else:
            people()

    def done(self, data: Any, sentence: str) -> None:
        """Say that something is done, or would be."""
        self.show(data, lambda: click.echo(f"would be done: {sentence}" if self.dry_run else sentence))

    def warn_of_nodes(self) -> None:
        """To be called after a change that somebody waits for: without a service the nodes do not hear of it."""
        if self.is_local and not self.dry_run:
            click.echo(
                "this is in the database only: nodes hear of it within a second where a rules service runs on it, else when one starts",
                err=True,
            )


def connected(*, make: bool = False) -> Callable[[Callable[..., Awaitable[int]]], Callable[..., int]]:
    """A command's work on a service: called with a ``Session`` and its own values. ``make``: the local database may be a new one."""

    def decorate(work: Callable[..., Awaitable[int]]) -> Callable[..., int]:
        @functools.wraps(work)
        def run(*arguments: Any, **values: Any) -> int:
            return call(values, lambda session, **rest: work(session, *arguments, **rest), make=make)

        return connection_options(run)

    return decorate


def call(values: dict[str, Any], work: Callable[..., Awaitable[int]], *, make: bool = False) -> int:
    """Do work on the service that the values of ``connection_options`` name; it gets a ``Session`` and all other values."""
    target = {name: values.pop(name) for name in _GIVEN}
    as_json, dry_run = values.pop("json"), values.pop("dry_run", False)
    reason = _checked_reason(values.pop("reason", ""))

    async def ask() -> int:
        async with _reached(target, make=make) as (client, is_local):
            return await work(Session(client, as_json, reason, dry_run, is_local), **values)

    return asyncio.run(ask())


def changing(function: Function) -> Function:
    """The flags of commands that change something."""
    for decorator in (
        flag("dry-run", help="Say what would happen, and change nothing."),
        option("reason", metavar="TEXT", default="", help="Why, for the audit trail."),
    ):
        function = decorator(function)
    return function


def limited(function: Function) -> Function:
    """The flag of commands that list rows."""
    decorator = option("limit", type=click.IntRange(1), metavar="N", default=100, help="Rows shown at most.")
    return decorator(function)


def connection_options(function: Callable[..., int]) -> Callable[..., int]:
    """The flags that name a service."""
    for decorator in (
        config_option(),
        flag("allow-plaintext", help="Speak without TLS to another machine, with the token in the clear."),
        option("timeout", type=DurationType(), default="30s", help="How long to wait for an answer."),
        option("db", metavar="URL", help="Without a server: its database, as `sluicegate control` has it."),
        option(
            "data",
            type=_PATH,
            default=".sluicegate",
            metavar="DIR",
            help="Without a server: the directory with its database, whose owner may do everything.",
        ),
        option("key", type=_PATH, metavar="FILE", help="Key of the client's certificate (PEM)."),
        option("cert", type=_PATH, metavar="FILE", help="Client's certificate, for a service that asks for one (PEM)."),
        option(
            "ca", type=_PATH, metavar="FILE", help="Authorities that the service's certificate may come from (PEM)."
        ),
        option("token-file", type=_PATH, metavar="FILE", help="File with the token."),
        option(
            "token",
            metavar="TOKEN",
            help="Token of the rules service; rather in the variable than on the command line.",
        ),
        option("server", metavar="URL", help="The rules service: http://HOST:PORT, https://HOST:PORT or unix:PATH."),
        flag("json", help="Print JSON."),
    ):
        function = decorator(function)
    return function


@contextlib.asynccontextmanager
async def _reached(given: dict[str, Any], *, make: bool) -> AsyncIterator[tuple[Client, bool]]:
    """A client, and whether the database is changed directly."""
    from sluicegate.cli.client import Client

    ctx = click.get_current_context()
    local = [name for name in ("data", "db") if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if local and ctx.get_parameter_source("server") is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"give --server or --{local[0]}, not both", ctx)
    timeout_s: float = given["timeout"]
    if given["server"] is not None and not local:
        async with _remote(given, timeout_s) as client:
            yield client, False
        return
    where = "the database" if given["db"] is not None else str(given["data"])
    make = make and bool(local)
    async with (
        interface(given["db"], given["data"], make=make) as transport,
        Client(_LOCAL, "local", where=where, timeout_s=timeout_s, transport=transport) as client,
    ):
        yield client, True


def _remote(given: dict[str, Any], timeout_s: float) -> Client:
    import httpx

    from sluicegate.cli.client import Client

    server = given["server"].rstrip("/")
    token = _token(given["token"], given["token_file"])
    if server.startswith("unix:"):
        path = server.removeprefix("unix:")
        transport = httpx.AsyncHTTPTransport(uds=path)
        return Client(_LOCAL, token, where=server, timeout_s=timeout_s, transport=transport)
    try:
        parts = urlsplit(server)
        host = parts.hostname
    except ValueError:
        raise ConfigurationError(f"--server: {without_login(server)!r} is no URL") from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigurationError(
            f"--server: {without_login(server)!r} is not http://HOST:PORT, https://HOST:PORT or unix:PATH"
        )
    near = _is_loopback(host)
    if parts.scheme == "http" and not near and not given["allow_plaintext"]:
        raise ConfigurationError(
            f"--server: {server} would get the token in the clear: use https, or say --allow-plaintext"
        )
    tls = _tls(given["ca"], given["cert"], given["key"])
    # A proxy for the world is none for this machine.
    return Client(server, token, where=server, timeout_s=timeout_s, tls=tls, from_environment=not near)


def _token(text: str | None, file: Path | None) -> str:
    if text is None and file is not None:
        try:
            with file.open("rb") as stream:
                text = stream.read(TOKEN_BYTES_MAX + 2).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigurationError(f"--token-file: cannot read {str(file)!r}: {reason}") from error
    if not text:
        raise ConfigurationError("the rules service needs a token: give --token-file or SLUICEGATE_TOKEN")
    if not (text.isascii() and text.isprintable()) or " " in text or len(text) > TOKEN_BYTES_MAX:
        raise ConfigurationError("the token has characters that no token has, or too many")
    return text


def _tls(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | bool:
    if ca is None and cert is None and key is None:
        return True
    if (cert is None) != (key is None):
        raise ConfigurationError("--cert and --key: a client's certificate needs both")
    for name, path in (("ca", ca), ("cert", cert), ("key", key)):
        if path is not None and not path.is_file():
            raise ConfigurationError(f"--{name}: there is no file {str(path)!r}")
    try:
        made = ssl.create_default_context(cafile=None if ca is None else str(ca))
        if cert is not None:
            made.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--ca, --cert, --key: cannot be used: {error}") from error
    return made


def _no_password() -> str:
    raise ValueError("the key has a password")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _checked_reason(reason: str) -> str:
    if not reason.isprintable():
        raise ConfigurationError("--reason: must be one line of plain text")
    return reason


def _given(params: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in params.items() if value}
