"""Readers of single fields that report what is wrong and go on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches

from sluicegate.bounds import CLAIM_NAME_CHARS_MAX, HEADER_NAME_CHARS_MAX

__all__ = ["FieldReader", "ProblemSink", "closest"]

ProblemSink = Callable[[str, str, str | None], None]
"""Takes one problem: field path from the top of the file, message, suggestion or None."""

# RFC 9110 tokens without the underscore: servers drop such headers, or confuse them with the hyphenated name.
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^`|~-]+", re.ASCII)


class FieldReader:
    """Reads parsed YAML. ``failed`` is True once anything was reported; what is bad reads as absent or its default."""

    def __init__(self, problem: ProblemSink) -> None:
        self._problem = problem
        self.failed = False

    def report(self, path: str, message: str, suggestion: str | None = None) -> None:
        self.failed = True
        self._problem(path, message, suggestion)

    def mapping(self, raw: object, path: str, known: tuple[str, ...]) -> dict[str, object]:
        """The known fields of a mapping; None is an empty one."""
        if raw is None:
            return {}
        if not isinstance(raw, dict):
            self.report(path, f"must be a mapping with {', '.join(known)}, got {_shown(raw)}")
            return {}
        fields: dict[str, object] = {}
        for name, value in raw.items():
            if name in known:
                fields[name] = value
            else:
                self.report(f"{path}.{name}", f"unknown field {name!r}", closest(str(name), known))
        return fields

    def texts(self, raw: object, path: str, wanted: str) -> Iterable[tuple[str, str]]:
        """Path and text of each item of a list; None is an empty one."""
        if raw is None:
            return
        if not isinstance(raw, list):
            suggestion = f"[{raw}]" if isinstance(raw, str) else None
            self.report(path, f"must be {wanted}, got {_shown(raw)}", suggestion)
            return
        for index, item in enumerate(raw):
            item_path = f"{path}[{index}]"
            text = self.text(item, item_path, "text")
            if text is not None:
                yield item_path, text

    def one_or_more(self, raw: object, path: str) -> tuple[str, ...]:
        wanted = "a text or a list of texts"
        return tuple(text for _, text in self.texts([raw] if isinstance(raw, str) else raw, path, wanted))

    def text(self, raw: object, path: str, wanted: str) -> str | None:
        if isinstance(raw, str) and raw.strip():
            return raw.strip()
        self.report(path, f"must be {wanted}, got {_shown(raw)}")
        return None

    def header(self, raw: object, path: str) -> str | None:
        name = self.text(raw, path, "a header name such as X-User-Id")
        if name is None:
            return None
        if _HEADER_NAME.fullmatch(name) and len(name) <= HEADER_NAME_CHARS_MAX:
            return name.lower()
        hyphens = name.replace("_", "-")
        suggestion = hyphens if _HEADER_NAME.fullmatch(hyphens) else None
        self.report(path, f"{name!r} is not a usable header name (letters, digits and hyphens)", suggestion)
        return None

    def claim(self, raw: object, path: str) -> str | None:
        name = self.text(raw, path, "the name of a claim such as sub")
        if name is not None and len(name) > CLAIM_NAME_CHARS_MAX:
            self.report(path, f"has {len(name)} characters; a claim's name has at most {CLAIM_NAME_CHARS_MAX}")
            return None
        return name

    def integer(self, block: dict[str, object], name: str, path: str, default: int, maximum: int) -> int:
        value = block.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum:
            return value
        self.report(f"{path}.{name}", f"must be an integer from 0 to {maximum}, got {_shown(value)}")
        return default


def closest(text: str, known: tuple[str, ...]) -> str | None:
    """The known word the reader may have meant."""
    by_lower = {name.lower(): name for name in known}
    matches = get_close_matches(text.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[matches[0]] if matches else None


def _shown(value: object) -> str:
    """A value as the operator wrote it, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
