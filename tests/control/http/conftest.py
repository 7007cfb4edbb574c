from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from sluicegate.clock import ManualClock
from sluicegate.control.http.app import build_app
from sluicegate.control.http.settings import ApiSettings
from sluicegate.control.model import Actor, Role
from sluicegate.control.service import RulesService

LOGIN = {"name": "login", "match": {"methods": ["POST"], "path": "/login"}, "per": ["ip"], "quota": "5/minute"}
NODE_TOKEN = "a-token-of-nodes-in-memory"

Ask = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture
def login() -> dict[str, Any]:
    """A rule as it is sent."""
    return dict(LOGIN)


@pytest.fixture
async def texts(service: RulesService, admin: Actor) -> dict[Role, str]:
    """A token of each role."""
    made = {}
    for role in Role:
        _, made[role] = await service.tokens.create(admin, f"the {role}", role)
    return made


@pytest.fixture
def api_settings() -> ApiSettings:
    return ApiSettings(node_token=NODE_TOKEN)


@pytest.fixture
def app(service: RulesService, clock: ManualClock, api_settings: ApiSettings) -> FastAPI:
    return build_app(service, api_settings, clock)


@pytest.fixture
async def client(app: FastAPI, texts: dict[Role, str]) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the token of an admin."""
    headers = {"Authorization": f"Bearer {texts[Role.ADMIN]}"}
    transport = httpx.ASGITransport(app=app, client=("192.0.2.9", 40_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://control", headers=headers) as made:
        yield made


@pytest.fixture
def as_role(texts: dict[Role, str]) -> Callable[[Role], dict[str, str]]:
    """The head of a request by a role."""
    return lambda role: {"Authorization": f"Bearer {texts[role]}"}


@pytest.fixture
async def with_login(client: httpx.AsyncClient) -> httpx.Response:
    """The service has one rule, ``login``."""
    answer = await client.post("/v1/rules", json=LOGIN)
    assert answer.status_code == 201, answer.text
    return answer
