"""Everything that the interface of a rules service can do has a command, which does it."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluicegate.cli.remote.render import told, when

pytestmark = pytest.mark.slow

RULES = """\
version: 1
tiers: {default: free, names: [free, paid]}
rules:
  - {name: login, match: {path: /login}, per: [ip], quota: 5/minute}
  - {name: api, match: {path: /api/**}, per: [user], quota: {free: 100/minute, paid: 1000/minute}}
"""

# Operations of the interface with the command that calls each, in an order in which all of them succeed.
TOUR: tuple[tuple[str, str], ...] = (
    ("put_ruleset", "rules apply rules.yaml"),
    ("get_ruleset", "rules export"),
    ("list_rules", "rules list"),
    ("create_rule", "rules set extra --create quota=9/minute per=[ip] match.path=/extra"),
    ("get_rule", "rules get extra"),
    ("patch_rule", "rules set extra quota=8/minute"),
    ("put_rule", "rules set extra --file extra.yaml"),
    ("delete_rule", "rules delete extra"),
    ("put_tiers", "rules tiers set tiers.yaml"),
    ("get_tiers", "rules tiers show"),
    ("put_identity", "rules identity set identity.yaml"),
    ("get_identity", "rules identity show"),
    ("delete_identity", "rules identity remove"),
    ("list_versions", "versions list"),
    ("get_version", "versions show 1"),
    ("diff_versions", "versions diff 1 1"),
    ("rollback", "rollback 1"),
    ("put_subject", "subjects set user:8123 --tier paid --factor 10x --until 3d --rule api"),
    ("list_subjects", "subjects show"),
    ("get_subject", "subjects show user:8123"),
    ("delete_subject", "subjects remove user:8123"),
    ("create_entry", "lists add block 2001:db8::/32 --expires 1h"),
    ("put_entry", "lists add block 2001:db8::/32 --update"),
    ("list_lists", "lists show"),
    ("list_entries", "lists show block --kind ip"),
    ("get_entry", "lists get block 2001:0db8::/32"),
    ("delete_entry", "lists remove block 2001:db8::/32"),
    ("import_entries", "lists import block feed.txt --source waf --replace --expires 7d"),
    ("delete_source", "lists remove block --source waf"),
    ("pause", "pause --rule login --for 15m"),
    ("list_pauses", "pauses"),
    ("get_pause", "pauses 1"),
    ("resume", "resume --rule login"),
    ("create_rollout", "rollout start candidate.yaml --share 1% --step 10%@15m --guard-refusals 0.5"),
    ("list_rollouts", "rollout list"),
    ("get_rollout", "rollout status"),
    ("get_candidate", "rollout candidate"),
    ("report_rollout", "rollout report"),
    ("advance_rollout", "rollout advance 100%"),
    ("promote_rollout", "rollout promote"),
    ("abort_rollout", "rollout abort"),
    ("try_rules", "rules diff rules.yaml --prune --minutes 5"),
    ("create_token", "tokens create ci --role editor --expires 90d"),
    ("list_tokens", "tokens list"),
    ("get_token", "tokens show 1"),
    ("revoke_token", "tokens revoke 3"),
    ("list_nodes", "nodes"),
    ("forget_node", "nodes --forget n1"),
    ("read_counters", "counters read --user 8123 --path /api/x"),
    ("grant_tokens", "counters grant 5 --rule api --subject user:8123"),
    ("reset_counters", "counters reset --user 8123 --path /api/x"),
    ("refund_decision", "counters refund DECISION"),
    ("explain_request", "explain --user 8123 --method POST --path /api/x"),
    ("list_audit", "audit list --action rule.put"),
    ("get_audit_line", "audit show 1"),
    ("verify_audit", "audit verify"),
    ("export_audit", "audit export"),
    ("adopt", "control adopt"),
    ("delete_tiers", "rules tiers remove"),
)

# These need a node that can be asked.
AT_NODES = frozenset(
    {"read_counters", "grant_tokens", "reset_counters", "refund_decision", "explain_request", "try_rules"}
)

# What is asked by nodes and by monitoring, not by people; and what is asked about traffic, which needs some: test_top.py, test_suggest.py.
FOR_MACHINES = frozenset({"feed", "health", "traffic"})


def operations(service: Any) -> dict[str, str]:
    """The operations of a service with their tags."""
    document = httpx.get(f"{service.address}/openapi.json", timeout=60).json()
    return {
        operation["operationId"]: operation["tags"][0]
        for path in document["paths"].values()
        for operation in path.values()
    }


def calls(service: Any) -> dict[str, int]:
    """How often each operation was done, by the numbers of the service."""
    text = httpx.get(f"{service.address}/metrics", timeout=60).text
    found: dict[str, int] = {}
    for operation, status, times in re.findall(
        r'^sluicegate_control_requests_total\{operation="(\w+)",status="(\d+)"\} (\S+)$', text, re.MULTILINE
    ):
        if status.startswith("2"):
            found[operation] = found.get(operation, 0) + int(float(times))
    return found


def test_every_operation_has_a_command(service: Any) -> None:
    """The table of this file names each operation of the OpenAPI document once, but for those of nodes and of monitoring."""
    wanted = {name for name, tag in operations(service).items() if tag not in FOR_MACHINES}
    assert sorted(name for name, _ in TOUR) == sorted(wanted)


@pytest.fixture
def files(tmp_path: Path) -> None:
    """What the commands of the table read, in the working directory."""
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "candidate.yaml").write_text(RULES.replace("5/minute", "4/minute"))
    (tmp_path / "extra.yaml").write_text("{match: {path: /extra}, per: [ip], quota: 7/minute}\n")
    (tmp_path / "tiers.yaml").write_text("{default: free, names: [free, paid, gold]}\n")
    (tmp_path / "identity.yaml").write_text("trusted_peers: [10.0.0.0/8]\n")
    (tmp_path / "feed.txt").write_text("198.51.100.7  # scanner\n203.0.113.0/24\n")


def prepare(operation: str, run: Callable[..., Any], report: Callable[[], None]) -> None:
    """What a line of the table needs beside the ones before it."""
    if operation == "abort_rollout":
        assert run("rollout", "start", "rules.yaml", "--kind", "shadow").status == 0
    elif operation == "forget_node":
        report()
    elif operation == "delete_tiers":
        assert run("rules", "set", "api", "quota=100/minute").status == 0


def walk(
    tour: Iterable[tuple[str, str]],
    run: Callable[..., Any],
    done: Callable[[str], None],
    report: Callable[[], None] = lambda: None,
) -> None:
    """Run lines of the table, each command for people and, where that changes nothing, for programs as well."""
    for operation, line in tour:
        prepare(operation, run, report)
        words = line.split()
        ran = run(*words)
        assert ran.status == 0, f"{line}: {ran.out}{ran.err}"
        if operation.startswith(("get_", "list_", "report_", "verify_", "read_", "explain_")):
            json.loads(run(*words, "--json").out)
        done(operation)


@pytest.fixture
def done(service: Any) -> Callable[[str], None]:
    """Fails for an operation that the service has not done since the test began."""
    before = calls(service)

    def check(operation: str) -> None:
        assert calls(service).get(operation, 0) > before.get(operation, 0), operation

    return check


def test_every_command_does_its_operation(remote: Any, service: Any, files: None, done: Any) -> None:
    """Each command of the table ends with 0, and the service counts the operation that it stands for."""
    node = remote("tokens", "create", "node", "--role", "node").out.strip()

    def report() -> None:
        told = {"node": "n1", "started_us": 1, "release": "x", "applied": {}}
        headers = {"Authorization": f"Bearer {node}"}
        assert httpx.post(f"{service.address}/v1/feed/report", json=told, headers=headers, timeout=60).is_success

    walk([line for line in TOUR if line[0] not in AT_NODES], remote, done, report)


class NodeWasLate(Exception):
    """The service gave the node up for an answer. What was asked of it may be done or not."""


def in_time(remote: Callable[..., Any]) -> Callable[..., Any]:
    """The same commands; raises NodeWasLate where a node did not answer the service in time."""

    def call(*words: str) -> Any:
        ran = remote(*words)
        if "no answer in" in ran.out + ran.err:
            raise NodeWasLate
        return ran

    return call


def wait_until_known(remote: Callable[..., Any], node: str) -> None:
    """Return when the service has heard where a node listens."""
    deadline = time.monotonic() + 60
    while not any(
        row["report"]["node"] == node and row["report"]["listeners"]
        for row in json.loads(remote("nodes", "--json").out)
    ):
        assert time.monotonic() < deadline, "the node was not heard of"
        time.sleep(0.05)


def counters_of(user: str, run: Callable[..., Any], done: Any, node: httpx.Client) -> None:
    """What a node charges a user is read, given back, forgotten and explained by command."""

    def charge(cost: int) -> Any:
        told = {"facts": {"path": "/api/x", "user": user}, "cost": cost, "receipt": True}
        answer = node.post("/v1/check?timeout_ms=5000", json=told)
        assert answer.status_code == 200, answer.text
        return answer.json()

    decision = charge(7)["decision_id"]
    charge(20)
    assert "27 of 100" in run("counters", "read", "--rule", "api", "--subject", f"user:{user}").out
    lines = {
        operation: line.replace("DECISION", decision).replace("8123", user)
        for operation, line in TOUR
        if operation in AT_NODES
    }
    order = ("read_counters", "explain_request", "grant_tokens", "refund_decision")
    walk([(operation, lines[operation]) for operation in order], run, done)
    assert charge(1)["remaining"] == 100 - 27 + 5 + 7 - 1
    tried = run(*lines["reset_counters"].split(), "--dry-run")
    assert (tried.status, "nothing was changed" in tried.out) == (0, True)
    walk([("reset_counters", lines["reset_counters"])], run, done)
    assert charge(1)["remaining"] == 99


def test_counters_at_a_node(remote: Any, files: None, done: Any, start_node: Any, node_token: str) -> None:
    """What a node has charged is read, given back, forgotten and explained by command, and seen in its next decisions."""
    assert remote("rules", "apply", "rules.yaml", "--prune").status == 0
    made = remote("tokens", "create", "counting", "--role", "node").out.strip()
    with start_node(made) as address, httpx.Client(base_url=address, timeout=60) as node:
        node.headers["Authorization"] = f"Bearer {node_token}"
        wait_until_known(remote, "n1")
        assert remote("rules", "apply", "rules.yaml", "--wait").status == 0
        for user in ("8123", "8124", "8125"):
            # Of a user of whom it is not known what was done, nothing can be said.
            with suppress(NodeWasLate):
                counters_of(user, in_time(remote), done, node)
                break
        else:
            pytest.fail("the node is late each time")
        lines = dict(TOUR)
        facts = {"path": "/api/x", "user": "trying"}
        deadline = time.monotonic() + 60
        while (tried := remote(*lines["try_rules"].split())).status != 0:
            # The node draws requests once the service has asked it to, and tells of them with its next report.
            assert "no node has told of requests" in tried.err, tried.err
            assert time.monotonic() < deadline
            assert node.post("/v1/check?timeout_ms=5000", json={"facts": facts}).is_success
            time.sleep(0.3)
        assert "were drawn at random" in tried.out
        assert json.loads(remote(*lines["try_rules"].split(), "--json").out)["whatif"]["report"]["requests"] > 0
        done("try_rules")
        assert remote("counters", "refund", "no-such-decision").status == 2
        assert remote("counters", "read").status == 2


def test_the_same_without_a_process(offline: Any, files: None, tmp_path: Path) -> None:
    """Each command of the table does the same on a database that no process serves, audited as the user of the system."""
    data = tmp_path / "offline"

    def report() -> None:
        told = json.dumps({"node": "n1", "started_us": 1, "release": "x", "applied": {}})
        with closing(sqlite3.connect(data / "control.db")) as connection, connection:
            connection.execute("INSERT INTO nodes (node, last_seen_us, report) VALUES ('n1', 1, ?)", (told,))

    for name, role in (("ann", "admin"), ("node", "node")):
        assert offline("tokens", "create", name, "--role", role).status == 0
    walk([line for line in TOUR if line[0] not in AT_NODES], offline, lambda _: None, report)
    rows = json.loads(offline("audit", "list", "--limit", "500", "--json").out)
    assert {row["actor"] for row in rows if row["actor"] != "system:setup"} == {rows[0]["actor"]}
    assert rows[0]["actor"].startswith("offline:")
    assert rows[0]["auth"] == "local"


def test_a_dry_run_changes_nothing(remote: Any, service: Any, files: None) -> None:
    """--dry-run of every kind of change is answered, and leaves no line in the audit trail."""
    assert remote("rules", "apply", "rules.yaml").status == 0
    head = remote("audit", "verify").out
    for line in (
        "rules set dry --create quota=9/minute per=[ip] match.path=/dry",
        "rules set login quota=1/minute",
        "subjects set user:1 --factor 2x",
        "lists add allow user:1",
        "lists import allow feed.txt --source dry",
        "pause",
        "rollout start candidate.yaml --share 1%",
        "tokens create dry",
        "control adopt",
    ):
        ran = remote(*line.split(), "--dry-run")
        assert ran.status == 0, f"{line}: {ran.err}"
        assert "would be" in ran.out, line
    assert remote("audit", "verify").out == head


def test_what_is_printed_is_no_command_to_a_terminal() -> None:
    """Control characters in what others wrote are shown as text; times beyond the calendar are numbers."""
    assert told("\x1b[31mred\x07") == "\\x1b[31mred\\x07"
    assert told(["a", None]) == "a, -"
    assert when(2**63 - 1) == "9223372036854775807 us"
    assert when(0) == "1970-01-01T00:00:00Z"
