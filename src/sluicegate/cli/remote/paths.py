"""Paths of the interface out of names that people chose."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import click

__all__ = ["entry_path", "rule_path", "segment", "split_value", "subject_path"]

_KINDS: Final = ("ip", "user", "api_key", "tenant")


def segment(name: str) -> str:
    """A name as one segment of a path."""
    if not name or name in (".", ".."):
        raise click.BadParameter(f"{name!r} is no name")
    return quote(name, safe="")


def rule_path(name: str) -> str:
    """The path of a rule."""
    return f"/v1/rules/{segment(name)}"


def subject_path(subject: str) -> str:
    """The path of a subject."""
    return f"/v1/subjects/{segment(subject)}"


def split_value(value: str) -> tuple[str, str]:
    """Kind and value of what is on a list: ``user:8123``, ``api_key:k1``, ``tenant:acme``; all else is an address or a network."""
    kind, colon, name = value.partition(":")
    return (kind, name) if colon and kind in _KINDS else ("ip", value)


def entry_path(name: str, value: str) -> str:
    """The path of an entry of a list."""
    kind, spelled = split_value(value)
    return f"/v1/lists/{name}/entries/{kind}/{segment(spelled)}"
