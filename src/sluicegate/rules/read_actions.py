"""Reads the parts of a rule that are small blocks of their own: cost, penalty, respond."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sluicegate.bounds import COST_MAX, PENALTY_BLOCK_DAYS_MAX
from sluicegate.rules.fields import Block, kind_of
from sluicegate.rules.model import CostFrom, Penalty
from sluicegate.rules.notation import DAY_US, NotationError, parse_count, parse_span, shown, suggest
from sluicegate.rules.read_match import TOKEN

__all__ = ["read_cost", "read_penalty", "read_respond"]

_AFTER: Final = re.compile(r"(\S+)[ \t]+(refusals?)[ \t]*/[ \t]*(\S.*)")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+[ -~]*", re.ASCII)
_AFTER_EXAMPLE: Final = "20 refusals/1m"


def read_cost(rule: Block) -> int | CostFrom:
    """A fixed cost >= 1, or where to read it: ``{header: X-Cost, max: 50}``."""
    item = rule.take("cost")
    if item is None:
        return 1
    if not isinstance(item.value, dict):
        return rule.integer("cost", default=1, least=1, most=COST_MAX)
    block = Block.of(item, rule.place.child("cost"), ("header", "min", "max", "default"), "{header: X-Cost, max: 50}")
    if block is None:
        return 1
    header = block.text("header")
    if header is None:
        if "header" not in block:
            block.add("header", "missing: the header to read the cost from")
        return 1
    if not TOKEN.fullmatch(header):
        block.add("header", f"{shown(header)} is not a header name")
    if "max" not in block:
        block.add("max", "missing: the most one request may cost, which is also what a malformed header costs")
    least = block.integer("min", default=1, least=1, most=COST_MAX)
    most = block.integer("max", default=COST_MAX, least=1, most=COST_MAX)
    if least > most:
        block.add("min", f"{least} is above max ({most})")
        return 1
    default = block.integer("default", default=least, least=1, most=COST_MAX)
    if not least <= default <= most:
        block.add("default", f"{default} is not within min and max ({least} to {most})")
    return CostFrom(header.lower(), least, most, default)


def read_penalty(rule: Block) -> Penalty | None:
    """``{after: 20 refusals/1m, block: 15m}``."""
    item = rule.take("penalty")
    if item is None:
        return None
    example = f"{{after: {_AFTER_EXAMPLE}, block: 15m}}"
    block = Block.of(item, rule.place.child("penalty"), ("after", "block"), example)
    if block is None:
        return None
    for name in ("after", "block"):
        if name not in block:
            block.add(name, f"missing; a penalty is written {example}")
    after = _after(block)
    block_us = _span(block, "block", block.text("block"))
    if after is None or block_us is None:
        return None
    if block_us > PENALTY_BLOCK_DAYS_MAX * DAY_US:
        block.add("block", f"is longer than {PENALTY_BLOCK_DAYS_MAX} days; that is for a block list")
        return None
    return Penalty(*after, block_us)


def _after(block: Block) -> tuple[int, int] | None:
    text = block.text("after")
    if text is None:
        return None
    found = _AFTER.fullmatch(text)
    if found is None:
        block.add("after", f"{shown(text)} is not written like {shown(_AFTER_EXAMPLE)}")
        return None
    within_us = _span(block, "after", found[3])
    try:
        refusals = parse_count(found[1], "number of refusals")
    except NotationError as error:
        block.add("after", error.message, error.suggestion)
        return None
    if refusals == 0:
        block.add("after", "0 refusals would block everybody")
        return None
    return None if within_us is None else (refusals, within_us)


def _span(block: Block, name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_span(text)
    except NotationError as error:
        block.add(name, error.message, error.suggestion)
        return None


def read_respond(rule: Block) -> str | Mapping[str, object]:
    """``429``, ``challenge``, or ``{template: TEXT, content_type: TEXT}``."""
    item = rule.take("respond")
    if item is None or item.text == "429":
        return "429"
    if item.value == "challenge":
        return "challenge"
    if isinstance(item.value, dict):
        place = rule.place.child("respond")
        block = Block.of(item, place, ("template", "content_type"), "{template: Slow down.}")
        if block is None:
            return "429"
        template = block.text("template")
        if template is None:
            if "template" not in block:
                block.add("template", "missing: the body of the answer")
            return "429"
        content_type = block.text("content_type") or "text/plain"
        if not _MEDIA_TYPE.fullmatch(content_type):
            block.add("content_type", f"{shown(content_type)} is not a media type such as text/html")
            return "429"
        return MappingProxyType({"template": template, "content_type": content_type})
    hint = suggest(item.value, ("challenge",)) if isinstance(item.value, str) else None
    rule.add("respond", f"expected 429, challenge or {{template: TEXT}}, got {kind_of(item)}", hint)
    return "429"
