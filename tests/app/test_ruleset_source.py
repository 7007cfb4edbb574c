"""The document of the rules in service."""

from __future__ import annotations

import json

from sluicegate.app.regions import RegionSettings, in_region
from sluicegate.app.ruleset_source import RulesetSource
from sluicegate.clock import SystemClock
from sluicegate.doors.headers import RateHeaders
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.redis import RedisStore
from sluicegate.stores.regional.plan import Plan

RULES = "version: 1\nrules:\n  - {name: api, per: [ip], quota: 5/minute}\n"


def test_it_is_made_once_for_each_rule_set() -> None:
    """The same object while the rules are the same, another one after an edit, with the new version."""
    limiter = Limiter.from_rules(load_rules(RULES, "a"))
    source = RulesetSource(limiter, RateHeaders(), "memory://")
    first = source()
    assert source() is first
    limiter.apply(load_rules(RULES.replace("5/", "6/"), "b"))
    assert source() is not first
    assert json.loads(source())["digest"] == limiter.ruleset.digest != json.loads(first)["digest"]


def test_how_subjects_stand_in_keys_is_told() -> None:
    """The store's URL says whether subjects are digests, readable or no keys at all, and so does the document."""
    limiter = Limiter.from_rules(load_rules(RULES, "a"))
    for store, keys in (
        ("redis://h/0", "digest"),
        ("redis://h/0?timeout_ms=9&keys=plain", "plain"),
        ("redis://h/0?layout=packed&expected_clients=9", "packed"),
        ("redis://h/0?moving_from=packed&moving_from_clients=9", "moving"),
    ):
        assert json.loads(RulesetSource(limiter, RateHeaders(), store)())["keys"] == keys


def test_in_a_region_every_rule_is_asked_about() -> None:
    """What is in its store are parts of limits under keys of their own, which a reader knows nothing of."""
    settings = RegionSettings("eu", Plan({"eu": 1, "us": 1}))
    home = RedisStore("redis://127.0.0.1:9/0", counted=False)
    store = in_region(settings, home, SystemClock())
    limiter = Limiter.from_rules(load_rules(RULES, "a"), store)
    (rule,) = json.loads(RulesetSource(limiter, RateHeaders(), "redis://127.0.0.1:9/0")())["rules"]
    assert rule["ask"] == "regions"
    assert "counters" not in rule
    limiter.close()
