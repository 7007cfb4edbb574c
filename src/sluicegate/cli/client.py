"""Asking a rules service over HTTP, and telling in plain words why it did not do what it was asked."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final, Self

import httpx

from sluicegate.clock import US_PER_S
from sluicegate.errors import ConfigurationError, SluicegateError

__all__ = ["Answer", "Client", "Refusal"]

_JSON: Final = "application/json"
_CHANGED_SINCE: Final = (
    "somebody changed it since it was read; look at what is there now (`sluicegate rules diff`), and try again"
)
_ERRORS_SHOWN: Final = 50


class Refusal(SluicegateError):
    """A rules service did not do what it was asked. ``status`` is that of its answer, 0 where there was none.

    ``problem``: the problem document that it came with, empty where there was none.
    """

    def __init__(self, message: str, status: int = 0, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem or {}


@dataclass(frozen=True, slots=True)
class Answer:
    """``data``: the JSON of the answer, None where there is none. ``etag``: "" for none.

    ``at_us``: when it was given, by the clock of the service, to the second; None where it does not say.
    """

    data: Any
    etag: str = ""
    at_us: int | None = None


class Client:
    """One rules service. ``where`` names it in messages; ``transport`` None: the network.

    ``token`` is sent with every request, and is in no message.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        where: str,
        timeout_s: float,
        tls: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
        from_environment: bool = True,
    ) -> None:
        self.where = where
        self._timeout_s = timeout_s
        try:
            self._http = httpx.AsyncClient(
                base_url=url,
                headers={"Authorization": f"Bearer {token}", "Accept": f"{_JSON}, */*;q=0.5"},
                timeout=timeout_s,
                verify=tls,
                transport=transport,
                trust_env=from_environment,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise ConfigurationError(f"--server: {where!r} is no URL that can be asked: {error}") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content: AsyncIterator[bytes] | None = None,
        media: str = _JSON,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """One request. ``body`` is sent as JSON, else ``content`` as it comes. Raises Refusal."""
        given: dict[str, Any] = {}
        # Values are sent as UTF-8: a reason may be in any language.
        told = {name.encode(): value.encode() for name, value in (headers or {}).items()}
        if body is not None or content is not None:
            told[b"Content-Type"] = media.encode()
        if body is not None:
            given["json"] = body
        elif content is not None:
            given["content"] = content
        if timeout_s is not None:
            given["timeout"] = timeout_s
        try:
            response = await self._http.request(method, path, params=params, headers=told, **given)
        except httpx.HTTPError as error:
            raise self._unreached(error, timeout_s or self._timeout_s) from error
        return self._answer(response)

    async def lines(self, path: str, params: Mapping[str, str]) -> AsyncIterator[str]:
        """The lines of an answer as they come. Raises Refusal."""
        try:
            async with self._http.stream("GET", path, params=params) as response:
                if not response.is_success:
                    await response.aread()
                    self._answer(response)
                async for line in response.aiter_lines():
                    yield line
        except httpx.HTTPError as error:
            raise self._unreached(error, self._timeout_s) from error

    def _answer(self, response: httpx.Response) -> Answer:
        is_json = response.headers.get("content-type", "").partition(";")[0].endswith("json")
        try:
            data = response.json() if is_json and response.content else None
        except ValueError as error:
            raise Refusal(f"{self.where}: the answer is not JSON: {error}", response.status_code) from error
        if not response.is_success:
            problem = data if isinstance(data, dict) else {}
            raise Refusal(f"{self.where}: {_words(response, problem)}", response.status_code, problem)
        if response.content and not is_json:
            raise Refusal(f"{self.where}: the answer is no JSON; is this the rules service?", response.status_code)
        return Answer(data, response.headers.get("etag", ""), _date_us(response))

    def _unreached(self, error: httpx.HTTPError, timeout_s: float) -> Refusal:
        if isinstance(error, httpx.ConnectTimeout):
            return Refusal(f"{self.where}: no connection within {timeout_s:g} s")
        if isinstance(error, httpx.TimeoutException):
            return Refusal(
                f"{self.where}: no answer within {timeout_s:g} s; whether it was done, `sluicegate audit list` tells"
            )
        if isinstance(error, httpx.ConnectError):
            return Refusal(f"cannot reach the rules service at {self.where}: {_one_line(error)}")
        return Refusal(f"{self.where}: the connection broke: {_one_line(error) or type(error).__name__}{self._hint()}")

    def _hint(self) -> str:
        """What is likely where a server ends a connection before it answers."""
        if self.where.startswith("https:"):
            return "; where the service asks for a client's certificate, give --cert and --key"
        return "; if the service speaks TLS, its address begins with https://" if self.where.startswith("http:") else ""


def _words(response: httpx.Response, problem: Mapping[str, Any]) -> str:
    """What an answer that is no success says, and what can be done about it."""
    status = response.status_code
    detail = str(problem.get("detail") or f"answered {status} {response.reason_phrase}".rstrip())
    if status == 401:
        return f"{detail}; give one with --token, --token-file or SLUICEGATE_TOKEN"
    if status == 403 and problem.get("role"):
        return f"{detail} (the role {problem['role']!r} is needed)"
    if status in (412, 428):
        return f"{detail}: {_CHANGED_SINCE}"
    if status in (429, 503) and "retry-after" in response.headers and "try again" not in detail:
        return f"{detail}; try again in {response.headers['retry-after']} s"
    if 300 <= status < 400:
        return f"answered {status}, a redirect, which is not followed: the token would go along"
    errors = [each for each in problem.get("errors", ()) if isinstance(each, dict)]
    if not errors:
        return detail
    shown = [f"  {each.get('pointer') or '#'}: {each.get('detail')}" for each in errors[:_ERRORS_SHOWN]]
    more = [f"  and {len(errors) - _ERRORS_SHOWN} more"] if len(errors) > _ERRORS_SHOWN else []
    return "\n".join(["refused, because of what was sent:", *shown, *more])


def _date_us(response: httpx.Response) -> int | None:
    try:
        return int(parsedate_to_datetime(response.headers["date"]).timestamp()) * US_PER_S
    except (KeyError, ValueError):
        return None


def _one_line(error: BaseException) -> str:
    """The reason of a failed connection, without the layers it came through."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {reason.verify_message}"
        if isinstance(reason, ssl.SSLError):
            return f"no TLS: {(reason.reason or str(reason)).lower().replace('_', ' ')}"
        if isinstance(reason, socket.gaierror):
            return str(reason.strerror)
        if isinstance(reason, OSError) and reason.errno:
            return os.strerror(reason.errno)
        reason = reason.__cause__ or reason.__context__
    return " ".join(str(error).split())
