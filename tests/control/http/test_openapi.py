from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import yaml

from sluicegate.clock import SystemClock
from sluicegate.control.http.app import build_app
from sluicegate.control.http.settings import ApiSettings
from sluicegate.control.model import Actor, Role
from sluicegate.control.server import ControlServer
from sluicegate.control.service import RulesService
from sluicegate.rules.load import check_rules
from sluicegate.rules.read_rule import RULE_FIELDS

NODE_TOKEN = "a-token-of-nodes-in-memory"
HEALTH = {"livez", "readyz", "healthz", "metrics"}
DOCS = Path(__file__).resolve().parents[3] / "docs"


async def document_of(client: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/openapi.json")).json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


async def test_every_operation_says_what_it_answers(client: httpx.AsyncClient) -> None:
    """Each operation has an id of its own, needs the token, and documents its refusals; a 429 says its headers."""
    document = await document_of(client)
    assert document["openapi"].startswith("3.1")
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    for method, path, operation in operations(document):
        if operation["operationId"] in HEALTH:
            assert "security" not in operation
            continue
        answers = set(operation["responses"])
        assert {"401", "403", "422", "429", "503"} <= answers, (method, path)
        assert operation["security"] == [{"token": []}]
        assert operation["summary"]
        assert {"Retry-After", "X-RateLimit-Limit"} <= set(operation["responses"]["429"]["headers"])
        if "requestBody" in operation:
            assert {"400", "413", "415"} <= answers, (method, path)
        if any(each["name"] == "if-match" for each in operation.get("parameters", ())):
            assert {"412", "428"} <= answers, (method, path)
        writes = method != "get" and not path.startswith(("/v1/feed", "/v1/counters/read", "/v1/explain", "/v1/whatif"))
        assert writes == any(each["name"] == "validate_only" for each in operation.get("parameters", ())), path


async def test_every_reference_leads_somewhere(client: httpx.AsyncClient) -> None:
    """Schemas that are named exist."""
    document = await document_of(client)

    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for name, child in value.items():
                if name == "$ref":
                    yield child
                yield from references(child)
        elif isinstance(value, list):
            for child in value:
                yield from references(child)

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= known


async def test_the_schema_of_a_rule_has_its_fields(client: httpx.AsyncClient) -> None:
    """The schema of a rule has the fields that rules have, and no others are allowed."""
    schema = (await document_of(client))["components"]["schemas"]["Rule"]
    assert sorted(schema["properties"]) == sorted(RULE_FIELDS)
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("page", ["rules.md", "matching.md", "identity.md", "algorithms.md"])
async def test_rules_of_the_documentation_fit_the_schema(client: httpx.AsyncClient, page: str) -> None:
    """Every whole rules file of the documentation is valid by the schema, too."""
    schemas = (await document_of(client))["components"]["schemas"]
    validator = jsonschema_rs.Draft202012Validator(
        {"$ref": "#/components/schemas/Ruleset", "components": {"schemas": schemas}}
    )
    texts = re.findall(r"^```yaml[^\n]*\n(version: 1\b.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    for text in texts:
        assert check_rules(text, page)[0] is not None
        assert [str(each) for each in validator.iter_errors(yaml.safe_load(text))] == [], text


def test_the_page_is_current() -> None:
    """docs/control/api.md has the table that scripts/control_api_page makes of the interface."""
    program = DOCS.parent / "scripts" / "control_api_page"
    namespace: dict[str, Any] = {"__name__": "control_api_page", "__file__": str(program)}
    exec(compile(program.read_text(), str(program), "exec"), namespace)
    text = (DOCS / "control" / "api.md").read_text()
    assert text == namespace["page"](text), "run scripts/control_api_page"


class Server:
    """The interface on a real port, on a loop of its own, with limits that no test reaches."""

    def __init__(self, database: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._do(self._open(database))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _open(self, database: str) -> None:
        clock = SystemClock()
        self._service = await RulesService.open(database, clock)
        admin = Actor("setup", "local", role=Role.ADMIN)
        _, self.token = await self._service.tokens.create(admin, "tester", Role.ADMIN)
        await self._service.tokens.create(admin, "spare", Role.ADMIN)
        sock = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        settings = ApiSettings(failed_logins_per_minute=10**6, writes_per_minute=10**6, node_token=NODE_TOKEN)
        self._server = ControlServer(build_app(self._service, settings, clock), sock)
        await self._server.start()

    async def _close(self) -> None:
        await self._server.close(5)
        await self._service.close()

    def close(self) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(f"sqlite:///{tmp_path / 'control.db'}")
    yield made
    made.close()


# The phase that covers every bound of a schema makes thousands of rules of one; drawn ones do.
PARTS = {
    "v1/(rules|ruleset)": "fuzzing",
    "v1/(tiers|identity|versions)": "fuzzing",
    "v1/(subjects|lists)": "coverage",
    "v1/(pauses|rollouts|nodes|adopt)": "fuzzing",
    "v1/(counters|explain|whatif)": "fuzzing",
    "v1/(audit|tokens)": "coverage",
    "v1/feed|livez|readyz|healthz": "coverage",
}


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_strangers_requests(server: Server, tmp_path: Path, part: str) -> None:
    """Whatever the document allows and what it does not: no fault of ours, and no answer that the document does not know.

    What it cannot say, such as which tiers a rule may name, is refused by the service; so that data it calls right are accepted
    is not asked for. Nor is that a missing token is refused, which other tests do for every operation.
    """
    token = NODE_TOKEN if "feed" in part else server.token
    words = [
        "run", f"{server.url}/openapi.json", "--header", f"Authorization: Bearer {token}",
        "--include-path-regex", f"^/({part})", "--exclude-operation-id", "revoke_token",
        "--exclude-checks", "positive_data_acceptance,ignored_auth", "--phases", PARTS[part],
        "--max-examples", "6", "--seed", "7", "--request-timeout", "60", "--no-color", "--generation-database", "none",
    ]  # fmt: skip
    # A bad body for what is not there, or has changed, may be refused for that.
    statuses = [400, 401, 403, 404, 405, 409, 412, 413, 415, 422, 428, 429, 503]
    settings = f"[checks.negative_data_rejection]\nexpected-statuses = {statuses}\n"
    (tmp_path / "schemathesis.toml").write_text(settings)
    program = Path(sys.executable).with_name("schemathesis")
    done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2_000:]
