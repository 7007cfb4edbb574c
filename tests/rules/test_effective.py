"""The rules a node decides by, out of those in service, a rollout and pauses."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as replace_fields

from sluicegate.errors import ConfigurationError
from sluicegate.rules.effective import effective
from sluicegate.rules.feed import Candidate, Pause, RulesDocument
from sluicegate.rules.load import load_rules
from sluicegate.rules.model import Mode, Rule, RuleSet


def rules(*lines: str) -> RuleSet:
    return load_rules("version: 1\nrules:\n" + "".join(f"  - {{{line}}}\n" for line in lines), "rules.yaml", 7)


BASE = rules(
    "name: a, per: [ip], quota: 10/minute", "name: floor, quota: 100/second", "name: gone, per: [user], quota: 5/hour"
)
NEXT = rules(
    "name: a, per: [ip], quota: 20/minute",
    "name: fresh, per: [ip], quota: 1/second",
    "name: floor, quota: 90/second",
)


def rollout(basis_points: int = 0, kind: str = "canary", nodes: tuple[str, ...] = ()) -> Candidate:
    document = RulesDocument(8, "", {})
    return Candidate(3, kind, document, "salt", basis_points, nodes)  # type: ignore[arg-type]


def made(trial: Candidate | None, *pauses: Pause, node: str = "n1", now_us: int = 1_000) -> RuleSet:
    return effective(BASE, None if trial is None else NEXT, trial, pauses, node, now_us).ruleset


def shares(ruleset: RuleSet) -> dict[str, str]:
    """Each rule with its part in the rollout, told shortly."""

    def told(rule: Rule) -> str:
        if rule.trial is None:
            return "untouched"
        arm = rule.trial.arm
        share = "all" if arm is None else f"{'below' if arm.inside else 'from'} {arm.basis_points}"
        return f"{rule.mode} {share} as {rule.trial.rule}/{rule.trial.generation}"

    return {rule.name: told(rule) for rule in ruleset.rules}


def test_without_rollout_and_pause_nothing_changes() -> None:
    """The rules in service are used as they are, the same object, and they change at no time by themselves."""
    found = effective(BASE, None, None, (), "n1", 0)
    assert found.ruleset is BASE
    assert found.changes_at_us is None


def test_a_canary_holds_both_versions_side_by_side() -> None:
    """Between 0 and 100 % both versions stand in the set, in the order of the files, with the counters of one name."""
    found = made(rollout(1_000))
    assert shares(found) == {
        "a@canary": "enforce below 1000 as a/0",
        "a": "enforce from 1000 as a/0",
        "fresh@canary": "enforce below 1000 as fresh/0",
        "floor": "enforce all as floor/0",
        "gone": "enforce from 1000 as gone/0",
    }
    assert (found.version, found.digest != BASE.digest) == (7, True)
    assert made(rollout(1_001)).digest != found.digest


def test_the_ends_of_a_canary_have_no_arms() -> None:
    """At 0 everybody has the old rules; at 100 % the new ones, those without clients included."""
    assert list(shares(made(rollout(0)))) == ["a", "floor", "gone"]
    assert shares(made(rollout(10_000))) == {
        "a@canary": "enforce all as a/0",
        "fresh@canary": "enforce all as fresh/0",
        "floor@canary": "enforce all as floor/0",
    }


def test_a_named_node_decides_everything_by_the_candidate() -> None:
    """On a named node all clients have the new rules, with counters of their own; other nodes know nothing of it."""
    named = rollout(0, nodes=("n2",))
    assert shares(made(named, node="n2")) == {
        "a@canary": "enforce all as a/3",
        "fresh@canary": "enforce all as fresh/3",
        "floor@canary": "enforce all as floor/3",
    }
    assert list(shares(made(named, node="n1"))) == ["a", "floor", "gone"]
    assert shares(made(rollout(10_000, nodes=("n2",)), node="n2")) == shares(made(rollout(10_000), node="n1"))


def test_a_shadow_is_evaluated_beside_the_old() -> None:
    """Every rule in service stays as it is; what differs is added as a shadow with counters of its own and no penalty."""
    base = rules("name: a, per: [ip], quota: 10/minute, mode: shadow", "name: b, per: [ip], quota: 1/second")
    after = rules(
        "name: a, per: [ip], quota: 10/minute, penalty: {after: 20 refusals/1m, block: 15m}",
        "name: b, per: [ip], quota: 2/second, mode: off",
    )
    found = effective(base, after, rollout(kind="shadow"), (), "n1", 0).ruleset
    assert shares(found) == {"a": "shadow all as a/0", "a@shadow": "shadow all as a/3", "b": "enforce all as b/0"}
    assert found.rules[1].penalty is None
    assert shares(made(rollout(kind="shadow")))["gone"] == "enforce all as gone/0"


def test_a_step_begins_at_its_moment_on_every_node() -> None:
    """Until it the share before it is in force, to the microsecond; the moment is foretold, beside the end of pauses."""
    step = replace_fields(rollout(5_000), before_basis_points=1_000, from_us=8_000)
    before = effective(BASE, NEXT, step, (Pause("gone", 9_000),), "n1", 7_999)
    assert shares(before.ruleset)["a@canary"] == "enforce below 1000 as a/0"
    assert before.changes_at_us == 8_000
    after = effective(BASE, NEXT, step, (Pause("gone", 9_000),), "n1", 8_000)
    assert shares(after.ruleset)["a@canary"] == "enforce below 5000 as a/0"
    assert after.changes_at_us == 9_000
    assert made(step, now_us=7_999) == made(rollout(1_000))
    assert made(step, now_us=8_000) == made(rollout(5_000))


def test_a_pause_turns_a_rule_off_to_the_microsecond() -> None:
    """Until its end a paused rule and its versions on trial are off; at its end they are back, and the end is foretold."""
    pause = Pause("a", 5_000)
    before = effective(BASE, NEXT, rollout(1_000), (pause, Pause("floor", 9_000)), "n1", 4_999)
    off = [rule.name for rule in before.ruleset.rules if rule.mode is Mode.OFF]
    assert (off, before.changes_at_us) == (["a@canary", "a", "floor"], 5_000)
    after = effective(BASE, NEXT, rollout(1_000), (pause, Pause("floor", 9_000)), "n1", 5_000)
    assert [rule.name for rule in after.ruleset.rules if rule.mode is Mode.OFF] == ["floor"]
    assert after.changes_at_us == 9_000
    assert effective(BASE, None, None, (pause,), "n1", 5_000).ruleset is BASE


def test_a_pause_of_everything_is_one_of_every_rule() -> None:
    """A pause that names no rule turns all off, and without an end it changes at no time; an unknown rule pauses nothing."""
    found = effective(BASE, None, None, (Pause(None, None), Pause("unknown", 50)), "n1", 0)
    assert {rule.mode for rule in found.ruleset.rules} == {Mode.OFF}
    assert found.changes_at_us == 50
    assert effective(BASE, None, None, (Pause(None, None),), "n1", 0).changes_at_us is None


@pytest.mark.parametrize("name", ["a@canary", "a@shadow", "@", "a@"])
def test_no_file_can_name_a_rule_as_a_version_on_trial(name: str) -> None:
    """A rule's name holds no @, so a version on trial is never mistaken for a rule of a file."""
    with pytest.raises(ConfigurationError):
        rules(f'name: "{name}", quota: 1/second')
