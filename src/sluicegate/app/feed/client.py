"""Asking a rules service, over HTTP: what nodes may ask, one call each.

Proxies named in the environment are not used: what leads to the public network does not lead to the rules service of a fleet.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from sluicegate.app.feed.settings import FeedSettings
from sluicegate.bounds import FEED_ANSWER_BYTES_MAX, FEED_CALL_S_MAX, FEED_CONNECT_S_MAX
from sluicegate.errors import ConfigurationError, MissingExtra
from sluicegate.rules.feed import ListChanges, NodeReport, ReportAnswer, Revisions, Snapshot, SubjectChanges

if TYPE_CHECKING:
    import httpx

__all__ = ["FeedClient", "FeedError"]

T = TypeVar("T")

_OK: Final = 200
_NOT_MODIFIED: Final = 304
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_DETAIL_CHARS: Final = 300


class FeedError(Exception):
    """The rules service could not be asked, or did not answer as one. ``refused``: it answered, and will not take this from this node."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class FeedClient:
    """One service. Every call raises FeedError; none shows the token. Used on one event loop.

    ``asked`` counts calls and ``failed`` those that raised. Raises ConfigurationError for a file that cannot be used, MissingExtra without httpx.
    """

    def __init__(self, settings: FeedSettings) -> None:
        self.asked = 0
        self.failed = 0
        self._settings = settings
        self._token = settings.read_token()
        self._tls = settings.tls()
        self._http = _open(settings, self._tls)

    async def revisions(self, etag: str = "", wait_s: int = 0) -> Revisions | None:
        """Where the service stands; None where that is what ``etag`` says, after it has not changed for ``wait_s``."""
        headers = {"If-None-Match": etag} if etag else {}
        if wait_s:
            headers["Prefer"] = f"wait={wait_s}"
        return await self._ask("GET", "/v1/feed/revisions", Revisions, headers=headers, wait_s=wait_s)

    async def snapshot(self) -> Snapshot:
        """The rules, and what changes them."""
        return _some(await self._ask("GET", "/v1/feed/snapshot", Snapshot))

    async def lists(self, since: int, cursor: str = "") -> ListChanges:
        """One page of what has changed in the lists."""
        return _some(await self._ask("GET", "/v1/feed/lists", ListChanges, params=_page(since, cursor)))

    async def subjects(self, since: int, cursor: str = "") -> SubjectChanges:
        """One page of what has changed in the subjects."""
        return _some(await self._ask("GET", "/v1/feed/subjects", SubjectChanges, params=_page(since, cursor)))

    async def report(self, report: NodeReport) -> ReportAnswer:
        """Tell how this node is."""
        headers = {"Content-Type": "application/json"}
        try:
            content = msgspec.json.encode(report)
        except UnicodeEncodeError:
            content = msgspec.json.encode(_encodable(report))
        return _some(await self._ask("POST", "/v1/feed/report", ReportAnswer, headers=headers, content=content))

    async def close(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        headers: Mapping[str, str] | None = None,
        wait_s: int = 0,
        **more: Any,
    ) -> T | None:
        self.asked += 1
        try:
            return await self._answer(method, path, kind, dict(headers or {}), wait_s, more)
        except FeedError:
            self.failed += 1
            raise

    async def _answer(
        self, method: str, path: str, kind: type[T], headers: dict[str, str], wait_s: int, more: dict[str, Any]
    ) -> T | None:
        status, content = await self._exchange(method, path, headers, wait_s, more)
        if status == _UNAUTHORIZED and self._renew_token():
            status, content = await self._exchange(method, path, headers, wait_s, more)
        if status == _NOT_MODIFIED:
            return None
        if status != _OK:
            raise _refusal(status, content)
        try:
            # Beside the loop: a page of lists is a megabyte.
            return await asyncio.to_thread(msgspec.json.decode, content, type=kind)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            raise FeedError(f"its answer to {path} is none of a rules service: {error}") from None

    async def _exchange(
        self, method: str, path: str, headers: dict[str, str], wait_s: int, more: dict[str, Any]
    ) -> tuple[int, bytes]:
        import httpx

        headers["Authorization"] = f"Bearer {self._token}"
        timeout = httpx.Timeout(FEED_CALL_S_MAX + wait_s, connect=FEED_CONNECT_S_MAX)
        content = bytearray()
        try:
            async with asyncio.timeout(FEED_CALL_S_MAX + wait_s):
                async with self._http.stream(method, path, headers=headers, timeout=timeout, **more) as answer:
                    async for piece in answer.aiter_bytes():
                        content += piece
                        if len(content) > FEED_ANSWER_BYTES_MAX:
                            raise FeedError(f"its answer to {path} has more than {FEED_ANSWER_BYTES_MAX} bytes")
                    return answer.status_code, bytes(content)
        except (TimeoutError, httpx.TimeoutException):
            raise FeedError(f"{path} was not answered in time") from None
        except (httpx.HTTPError, OSError) as error:
            self._renew_tls()
            raise FeedError(f"{path}: {str(error) or type(error).__name__}") from None

    def _renew_tls(self) -> None:
        """Take renewed certificates: the one that was brought may have ended. Those that cannot be used are not taken."""
        if self._tls is not None:
            with contextlib.suppress(ConfigurationError):
                self._settings.renew_tls(self._tls)

    def _renew_token(self) -> bool:
        """Read the token's file again; whether it holds another one now."""
        before = self._token
        try:
            self._token = self._settings.read_token()
        except ConfigurationError as error:
            raise FeedError(str(error), refused=True) from None
        return self._token != before


def _open(settings: FeedSettings, tls: ssl.SSLContext | None) -> httpx.AsyncClient:
    try:
        import httpx
    except ModuleNotFoundError as error:
        raise MissingExtra("server", "asking a rules service") from error
    limits = httpx.Limits(max_connections=4, max_keepalive_connections=4)
    if settings.url.startswith("unix:"):
        path = settings.url.removeprefix("unix:")
        transport = httpx.AsyncHTTPTransport(uds=path, limits=limits, trust_env=False)
        return httpx.AsyncClient(transport=transport, base_url="http://control", trust_env=False)
    return httpx.AsyncClient(
        base_url=settings.url,
        verify=True if tls is None else tls,
        limits=limits,
        trust_env=False,
        follow_redirects=False,
    )


def _page(since: int, cursor: str) -> dict[str, str]:
    return {"since": str(since), **({"cursor": cursor} if cursor else {})}


def _refusal(status: int, content: bytes) -> FeedError:
    if status == _UNAUTHORIZED:
        return FeedError("it does not know the token (401)", refused=True)
    detail = content[:_DETAIL_CHARS].decode("utf-8", "replace")
    try:
        told = msgspec.json.decode(content, type=dict[str, Any])
        detail = str(told.get("detail") or told.get("title") or "")[:_DETAIL_CHARS]
    except (msgspec.DecodeError, msgspec.ValidationError):
        pass
    if status == _FORBIDDEN:
        return FeedError(f"the token is not one of this node (403): {detail}", refused=True)
    return FeedError(f"it answered {status}: {detail}", refused=400 <= status < 500 and status not in (408, 429))


def _encodable(report: NodeReport) -> NodeReport:
    """Without the clients whose names no JSON can carry (lone surrogates, which tokens may hold): they must not keep all else from being told."""
    samples = [each for each in report.samples if _is_text(each.facts)]
    penalties = [each for each in report.penalties if _is_text(each.value)]
    would_refuse = [each for each in report.would_refuse if _is_text(each)]
    return msgspec.structs.replace(report, samples=samples, penalties=penalties, would_refuse=would_refuse)


def _is_text(value: object) -> bool:
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return False
    return True


def _some(answer: T | None) -> T:
    """An answer to a question that holds no condition."""
    if answer is None:
        raise FeedError("it answered 304 to a question without a condition")
    return answer
