"""JSON Schemas of what people write: rules, as in a rules file, and subjects. What they mean is checked by ``rules``, not by these."""

from __future__ import annotations

from typing import Any, Final

from sluicegate.algorithms.precision import Precision
from sluicegate.algorithms.spec import OnChange
from sluicegate.bounds import (
    COST_MAX,
    LIST_VALUE_CHARS_MAX,
    RULES_MAX,
    SUB_WINDOWS_MAX,
    SUBJECT_FACTOR_PART_MAX,
    TIERS_MAX,
)
from sluicegate.rules.model import FailurePolicy, Mode, OnMissing, Scope
from sluicegate.rules.quota import ALGORITHMS
from sluicegate.rules.read_rule import NAME

__all__ = ["SCHEMAS"]

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_SWITCH: Final[Schema] = {"type": "boolean"}
_WHOLE: Final[Schema] = {"type": "integer", "minimum": 0}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 1}
_NAME: Final[Schema] = {"type": "string", "pattern": f"^{NAME.pattern}$"}
_REASON: Final[Schema] = {"type": "string", "description": "Why, for the audit trail; it is no part of the rules."}


def _object(properties: Schema, *required: str, text: str = "") -> Schema:
    made: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        made["required"] = list(required)
    if text:
        made["description"] = text
    return made


def _any(*kinds: Schema) -> Schema:
    return {"anyOf": list(kinds)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def _one_or_more(items: Schema) -> Schema:
    return _any(items, _list(items))


def _words(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


_VALUE: Final = _any(_TEXT, {"type": "number"})
_VALUES: Final = _one_or_more(_VALUE)
_BY_NAME: Final[Schema] = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": _any(_TEXT, {"type": "number"}, {"type": "null"}),
}
_NUMBERS: Final = _object(
    {
        "capacity": _WHOLE,
        "refill": _TEXT,
        "refill_per_sec": {"type": "number", "exclusiveMinimum": 0},
        "limit": _WHOLE,
        "window_s": {"type": "number", "exclusiveMinimum": 0},
    },
    text="A quota in numbers: of a bucket, or of a window.",
)
_ONE_QUOTA: Final = _any({"type": "string", "examples": ["100/minute"]}, {"const": 0}, _NUMBERS)
_QUOTA: Final = _any(
    *_ONE_QUOTA["anyOf"],
    {
        "type": "object",
        "minProperties": 1,
        "propertyNames": _NAME,
        "additionalProperties": _ONE_QUOTA,
        "description": "By tier.",
    },
)
_CONDITIONS: Final[Schema] = {
    **dict.fromkeys(("methods", "path", "host", "tier", "tenant", "user", "ip", "domain"), _VALUES),
    "headers": _BY_NAME,
    "descriptors": _BY_NAME,
    "entries": _list(_object({"key": _TEXT, "value": _VALUE, "not": _VALUES}, "key")),
    "authenticated": _SWITCH,
}
_MATCH: Final = _object(
    {**_CONDITIONS, "not": _object(_CONDITIONS)}, text="Which requests the rule is for; left out: all."
)
_MISSING: Final = _words(*OnMissing)
_RULE: Final[Schema] = {
    "name": _NAME,
    "scope": _words(*Scope),
    "match": _MATCH,
    "per": _any(_TEXT, _list(_TEXT), _object({"first_of": _one_or_more(_TEXT), "on_missing": _MISSING}, "first_of")),
    "on_missing": _MISSING,
    "quota": _QUOTA,
    "algorithm": _words(*ALGORITHMS),
    "strict": _any(_SWITCH, {"type": "integer", "minimum": 1, "maximum": SUB_WINDOWS_MAX}),
    "max_delay_ms": _WHOLE,
    "nodelay": _SWITCH,
    "align": _words("epoch", "calendar"),
    "tz": _TEXT,
    "cost": _any(
        {"type": "integer", "minimum": 1, "maximum": COST_MAX},
        _object(
            {"header": _TEXT, **dict.fromkeys(("min", "max", "default"), _COUNT)},
            "header",
            "max",
        ),
    ),
    "mode": _words(*Mode),
    "on_store_failure": _words(*FailurePolicy),
    "fallback_start": _words("full", "empty"),
    "fallback_share": _words("even", "sticky"),
    "precision": _words(*Precision),
    "denied_counts": _SWITCH,
    "on_change": _words(*OnChange),
    "respond": _any(
        {"const": 429}, _words("429", "challenge"), _object({"template": _TEXT, "content_type": _TEXT}, "template")
    ),
    "penalty": _object({"after": _TEXT, "block": _TEXT}, "after", "block"),
}
_TIERS: Final[Schema] = {
    "default": _NAME,
    "names": _any(_NAME, {"type": "array", "items": _NAME, "maxItems": TIERS_MAX}),
}
_JWT: Final = _object(
    {
        **dict.fromkeys(("jwks", "claim", "issuer", "header"), _TEXT),
        "audience": _one_or_more(_TEXT),
        "algorithms": _one_or_more(_TEXT),
        "leeway_s": _WHOLE,
    }
)
_SOURCE: Final = _object({"header": _TEXT, "keys": _TEXT, "claim": _TEXT, "jwt": _JWT})
_IDENTITY: Final[Schema] = {
    "trusted_peers": _any(_TEXT, {"type": "array", "items": _TEXT}),
    **dict.fromkeys(("user", "api_key", "tenant", "tier"), _SOURCE),
    "ip": _object({"ipv4_prefix": _WHOLE, "ipv6_prefix": _WHOLE, "header": _TEXT}),
    "jwt": _JWT,
}
_RULESET: Final[Schema] = {
    "version": {"const": 1, "description": "Of the format."},
    "identity": {"$ref": "#/components/schemas/Identity"},
    "subjects": {"type": "object", "additionalProperties": _NAME},
    "tiers": {"$ref": "#/components/schemas/Tiers"},
    "rules": {"type": "array", "items": {"$ref": "#/components/schemas/Rule"}, "minItems": 1, "maxItems": RULES_MAX},
}
_WITH_REASON: Final[Schema] = {"reason": _REASON}

_FACTOR_PART: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": SUBJECT_FACTOR_PART_MAX}
_SUBJECT: Final[Schema] = {
    "tier": _any(_TEXT, {"type": "null"}),
    "factor": _any(
        {"type": "string", "examples": ["10x"]},
        {"type": "number", "exclusiveMinimum": 0},
        _object({"numerator": _FACTOR_PART, "denominator": _FACTOR_PART}, "numerator", "denominator"),
        {"type": "null"},
    ),
    "until_us": {
        **_any(_WHOLE, {"type": "null"}),
        "description": "When the factor ends, refused without one; a tier does not end.",
    },
    "rules": _any({"type": "array", "items": {"type": "string", "maxLength": LIST_VALUE_CHARS_MAX}}, {"type": "null"}),
    "note": _any(_TEXT, {"type": "null"}),
}
_PATCH: Final[Schema] = {
    "type": "object",
    "properties": {name: {"description": "As in Rule, or null, or for an object a part of it."} for name in _RULE}
    | _WITH_REASON,
    "additionalProperties": False,
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Rule": _object(_RULE, "name", "quota", text="A rule, as in a rules file; docs/rules.md says what it means."),
    "NewRule": _object({**_RULE, **_WITH_REASON}, "name", "quota", text="A rule."),
    "PutRule": _object(
        {**_RULE, **_WITH_REASON}, "quota", text="A rule; its name is that of the path unless it says another."
    ),
    "RulePatch": {**_PATCH, "description": "A merge patch (RFC 7396) of a rule."},
    "Ruleset": _object(_RULESET, "version", "rules", text="A rules file as JSON."),
    "PutRuleset": _object({**_RULESET, **_WITH_REASON}, "version", "rules", text="A rules file as JSON."),
    "Tiers": _object(_TIERS, "default", "names", text="All tiers, and the one of requests that have none."),
    "PutTiers": _object({**_TIERS, **_WITH_REASON}, "default", "names", text="All tiers."),
    "Identity": _object(_IDENTITY, text="Who a request comes from; docs/identity.md says what it means."),
    "PutIdentity": _object({**_IDENTITY, **_WITH_REASON}, text="Who a request comes from."),
    "PutSubject": {
        **_object({**_SUBJECT, **_WITH_REASON}, text="A tier, or a factor of the limits, or both."),
        "anyOf": [{"required": ["tier"]}, {"required": ["factor"]}],
    },
}
"""Schemas by name. Those whose names begin with New or Put may hold a reason."""
