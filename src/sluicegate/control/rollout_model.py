"""What goes into rollouts and what comes out of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from sluicegate.bounds import (
    CONTROL_TEXT_CHARS_MAX,
    GUARD_REQUESTS_MAX,
    GUARD_WINDOW_S_MAX,
    GUARD_WINDOW_S_MIN,
    ROLLOUT_NODES_MAX,
    ROLLOUT_STEP_S_MAX,
    ROLLOUT_STEPS_MAX,
)
from sluicegate.clock import US_PER_S
from sluicegate.control.errors import Fault, Invalid
from sluicegate.control.guard import Counts, Guard
from sluicegate.rules.feed import CandidateKind
from sluicegate.rules.trials import BASIS_POINTS

__all__ = ["RolloutReport", "RolloutRow", "RolloutState", "RuleOnTrial", "Step", "Wanted", "read_wanted", "share_fault"]


class RolloutState(StrEnum):
    """``promoted``: the candidate is in service. ``rolled_back``: a guard has ended it. ``aborted``: somebody, or another change, has."""

    RUNNING = "running"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    ABORTED = "aborted"


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of the clients, of 10,000, that a schedule goes to ``after_s`` seconds after the step before it, or after the beginning."""

    basis_points: int
    after_s: int


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rollout as it is asked for. ``document`` is the whole candidate, a rules file as JSON. The rest is as in ``RolloutRow``."""

    document: dict[str, Any]
    kind: CandidateKind
    basis_points: int = 0
    nodes: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    guard: Guard | None = None


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """A rollout, without its candidate. ``base_version``: the rules that were in service when it began; ``digest`` is the candidate's.

    ``basis_points``: the share of the clients that is inside from ``step_us`` on, which is a little ahead after a step; until then it
    is ``before_basis_points``.
    """

    id: int
    kind: CandidateKind
    base_version: int
    digest: str
    salt: str
    basis_points: int
    before_basis_points: int
    nodes: tuple[str, ...]
    steps: tuple[Step, ...]
    guard: Guard | None
    state: RolloutState
    created_us: int
    step_us: int
    actor: str
    reason: str

    @property
    def next_step(self) -> Step | None:
        """The first step of the schedule with a larger share than that of now."""
        if self.state is not RolloutState.RUNNING:
            return None
        return next((step for step in self.steps if step.basis_points > self.basis_points), None)

    @property
    def next_step_us(self) -> int | None:
        """When the schedule goes on; None where it does not."""
        step = self.next_step
        return None if step is None else self.step_us + step.after_s * US_PER_S


@dataclass(frozen=True, slots=True)
class RuleOnTrial:
    """A rule that differs. ``change``: added, removed or changed; ``details`` say in which way, ``worst_case`` what a client may get in excess.

    ``note``: what of it the rollout cannot show, "" for nothing. ``old`` and ``new``: what both versions did since the beginning.
    """

    rule: str
    change: str
    details: tuple[str, ...]
    worst_case: str
    note: str
    old: Counts | None
    new: Counts | None


@dataclass(frozen=True, slots=True)
class RolloutReport:
    """How a rollout does. ``requests`` and ``store_errors``: of all nodes, since it began.

    ``clients``: (version, subject, times), those that were refused most, by the new versions or, as shadows, would have been.
    """

    rollout: RolloutRow
    requests: int
    store_errors: int
    rules: tuple[RuleOnTrial, ...]
    clients: tuple[tuple[str, str, int], ...]


def read_wanted(value: object) -> Wanted:
    """A rollout out of plain data; raises Invalid with a pointer to every fault. The candidate itself is not looked into."""
    try:
        wanted = msgspec.convert(value, Wanted)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise Invalid([Fault(message, _pointer(path.rstrip("`")))]) from None
    faults = [*_share_faults(wanted), *_step_faults(wanted), *_guard_faults(wanted.guard)]
    if faults:
        raise Invalid(faults)
    return wanted


def share_fault(basis_points: int) -> Fault | None:
    """What is wrong with a share of the clients."""
    if 0 <= basis_points <= BASIS_POINTS:
        return None
    return Fault(f"basis_points: must be in 0..{BASIS_POINTS}, got {basis_points}", "/basis_points")


def _share_faults(wanted: Wanted) -> list[Fault]:
    fault = share_fault(wanted.basis_points)
    faults = [] if fault is None else [fault]
    if len(wanted.nodes) > ROLLOUT_NODES_MAX:
        faults.append(Fault(f"nodes: has {len(wanted.nodes)} names; at most {ROLLOUT_NODES_MAX} are allowed", "/nodes"))
    for place, name in enumerate(wanted.nodes):
        if not (0 < len(name) <= CONTROL_TEXT_CHARS_MAX and name.isprintable()):
            faults.append(Fault(f"nodes: {name!r:.64} is no name of a node", f"/nodes/{place}"))
    if wanted.kind == "shadow":
        for field in ("basis_points", "nodes", "steps"):
            if getattr(wanted, field):
                faults.append(Fault(f"{field}: a shadow is evaluated for every client on every node", f"/{field}"))
    return faults


def _step_faults(wanted: Wanted) -> list[Fault]:
    faults = []
    if len(wanted.steps) > ROLLOUT_STEPS_MAX:
        faults.append(Fault(f"steps: has {len(wanted.steps)}; at most {ROLLOUT_STEPS_MAX} are allowed", "/steps"))
    before = wanted.basis_points
    for place, step in enumerate(wanted.steps):
        if not before < step.basis_points <= BASIS_POINTS:
            message = (
                f"basis_points: each step must be larger than the one before it, {before}, and at most {BASIS_POINTS}"
            )
            faults.append(Fault(f"{message}, got {step.basis_points}", f"/steps/{place}/basis_points"))
        if not 0 <= step.after_s <= ROLLOUT_STEP_S_MAX:
            message = f"after_s: must be in 0..{ROLLOUT_STEP_S_MAX} seconds, got {step.after_s}"
            faults.append(Fault(message, f"/steps/{place}/after_s"))
        before = step.basis_points
    return faults


def _guard_faults(guard: Guard | None) -> list[Fault]:
    if guard is None:
        return []
    faults = []
    bounds = {"refusal_ratio_max": guard.refusal_ratio_max, "store_error_ratio_max": guard.store_error_ratio_max}
    for name, bound in bounds.items():
        if bound is not None and not 0 <= bound <= 1:
            faults.append(Fault(f"{name}: must be in 0..1, got {bound:g}", f"/guard/{name}"))
    if all(bound is None for bound in bounds.values()):
        faults.append(Fault(f"guard: looks at nothing; give it {' or '.join(bounds)}", "/guard"))
    for name, least, value, most in (
        ("min_requests", 1, guard.min_requests, GUARD_REQUESTS_MAX),
        ("window_s", GUARD_WINDOW_S_MIN, guard.window_s, GUARD_WINDOW_S_MAX),
    ):
        if not least <= value <= most:
            faults.append(Fault(f"{name}: must be in {least}..{most}, got {value}", f"/guard/{name}"))
    return faults


def _pointer(path: str) -> str:
    """``.steps[0].after_s`` as a JSON pointer."""
    return path.replace("[", "/").replace("]", "").replace(".", "/")
