"""``GET /v1/ruleset``: the rules in service for programs that decide by them in other languages."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Final

from sluicegate.doors.http.respond import Reply, json_reply
from sluicegate.doors.http.site import Route

__all__ = ["RulesetReplies"]

_TAG_CHARS: Final = 32
_FRESH: Final = "Cache-Control: no-cache\r\n"


class RulesetReplies:
    """Answers with ``document()``, and with 304 to who has it. Its ETag is a digest of the whole document, so that it tells
    apart what the version of the rules alone would not: a server that was started anew, another dialect of headers.

    ``document`` gives the same object while the rules are the same.
    """

    def __init__(self, document: Callable[[], bytes]) -> None:
        self._document = document
        self._tagged: tuple[bytes, str] = (b"", "")
        self.route = Route("/v1/ruleset", {"GET": self.reply}, etag=self.etag)

    def reply(self, _body: bytes) -> Reply:
        """``GET /v1/ruleset``."""
        return json_reply(200, self._document(), _FRESH)

    def etag(self) -> str:
        """The version of the document, quoted."""
        document = self._document()
        known, tag = self._tagged
        if known is not document:
            tag = f'"{sha256(document).hexdigest()[:_TAG_CHARS]}"'
            self._tagged = (document, tag)
        return tag
