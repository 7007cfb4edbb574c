r"""Lines of the common and combined formats of Apache and nginx.

    203.0.113.9 - alice [17/May/2015:10:05:03 +0000] "GET /path HTTP/1.1" 200 512                     common
    203.0.113.9 - alice [17/May/2015:10:05:03 +0000] "GET /path HTTP/1.1" 200 512 "referer" "agent"   combined

One expression reads the usual line, as far as it is needed: to the status, or to the end where a rule looks at the
referer or the user agent. A line that is cut off behind that is a request all the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable
from typing import Any, Final

from sluicegate.replaying.bad_line import BadLine
from sluicegate.replaying.request_line import ABSENT, Client, client_of, request_line, unescaped
from sluicegate.replaying.times import ClfTimes
from sluicegate.rules.facts import Facts

__all__ = ["TextParser"]

_QUOTED: Final = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)'
_TIME: Final = r" \[([^\]]{1,64})\] "
_STATUS: Final = r'" (?:\d{3}|-)(?![^ ])'
_COMBINED: Final = r'(?: \S+ (?="))'
_HEADERS: Final = rf'(?: \S+ {_QUOTED}" {_QUOTED})'

_EMPTY_USER: Final = '""'
"""How Apache writes a user with an empty name."""

_CLIENT, _USER, _WHEN, _REQUEST, _REFERER, _AGENT = range(1, 7)
_FACTS_OF: Final = {"method": _REQUEST, "path": _REQUEST, "host": _REQUEST, "user": _USER}
_HEADERS_OF: Final = {"header.referer": _REFERER, "header.user-agent": _AGENT}


class TextParser:
    """Reads lines as far as ``needed`` facts ask for. ``combined``: True asks for referer and user agent in each line, False knows none, None takes what is there."""

    __slots__ = ("_groups", "_match", "_match_any_user", "_names", "_times")

    def __init__(self, needed: Collection[str], *, combined: bool | None) -> None:
        groups = {_CLIENT} | {group for name, group in _FACTS_OF.items() if name in needed}
        tail = _COMBINED if combined else ""
        if combined is not False:
            headers = {group for name, group in _HEADERS_OF.items() if name in needed}
            groups |= headers
            if headers:
                tail = _HEADERS if combined else f"{_HEADERS}?"
        self._groups = tuple(sorted(groups))
        self._times = ClfTimes()
        end = f"{_TIME}{_QUOTED}{_STATUS}{tail}"
        self._match = re.compile(rf"(\S+) \S+ (\S+){end}", re.ASCII | re.DOTALL).match
        # The name of a user may hold blanks, which Apache does not escape.
        self._match_any_user = re.compile(rf"(\S+) \S+ (\S.*?){end}", re.ASCII | re.DOTALL).match

    def read(self, line: str) -> tuple[int, Hashable]:
        """The time of a line and what else is needed of it, for ``facts``. Raises BadLine."""
        found = self._match(line) or self._match_any_user(line)
        if found is None:
            raise BadLine(_reason(line))
        try:
            return self._times[found[_WHEN]], found.group(*self._groups)
        except ValueError as error:
            raise BadLine(str(error)) from None

    def facts(self, key: Any) -> tuple[Facts, Client]:
        """The facts of all lines with this key. Raises BadLine where there is no client."""
        texts = (key,) if isinstance(key, str) else key
        values = dict(zip(self._groups, texts, strict=True))
        client = client_of(values[_CLIENT])
        request = request_line(unescaped(values.get(_REQUEST, "")))
        headers = {
            name.removeprefix("header."): unescaped(text)
            for name, group in _HEADERS_OF.items()
            if (text := values.get(group)) is not None and text not in ABSENT
        }
        user = unescaped(values.get(_USER, ""))
        facts = Facts(
            method=request.method,
            path=request.path,
            host=request.host,
            ip=client.ip,
            user=None if user in ABSENT or user == _EMPTY_USER else user,
            headers=headers or None,
        )
        return facts, client


_STEPS: Final = (
    (re.compile(r"\S+ \S+ \S"), "it does not begin with client, identity and user"),
    (re.compile(rf"\S+ \S+ \S.*?{_TIME}", re.DOTALL), "no time in brackets after the user"),
    (re.compile(rf'.*?{_TIME}{_QUOTED}"', re.DOTALL), "no request in quotation marks after the time"),
    (re.compile(rf".*?{_TIME}{_QUOTED}{_STATUS}", re.DOTALL), "no status after the request"),
)


def _reason(line: str) -> str:
    """What a line lacks."""
    for step, reason in _STEPS:
        if not step.match(line):
            return reason
    return "no referer and user agent: is the format common?"
