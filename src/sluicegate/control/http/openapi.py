"""The OpenAPI document: what the operations declare, with the schemas they name."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI

from sluicegate.control.http.operations import TYPES
from sluicegate.control.http.problems import Problem
from sluicegate.control.http.schemas import SCHEMAS
from sluicegate.control.rollout_model import Wanted

__all__ = ["complete", "queries_of"]

_REF = "#/components/schemas/{name}"
_METHODS = frozenset({"get", "put", "post", "delete", "patch"})


def complete(app: FastAPI) -> dict[str, Any]:
    """The document of an application, which serves it from now on."""
    document = app.openapi()
    kinds = [Problem, Wanted, *TYPES.values()]
    _, generated = msgspec.json.schema_components(kinds, ref_template=_REF)
    rollout = generated.pop("Wanted")
    rollout["properties"]["document"] = {"$ref": "#/components/schemas/Ruleset"}
    rollout["properties"]["reason"] = {"type": "string"}
    components = document.setdefault("components", {})
    components["schemas"] = dict(sorted({**generated, "NewRollout": rollout, **SCHEMAS}.items()))
    for _, _, operation in _operations(document):
        # A parameter that is left out is no null, whatever the types in the program say.
        for parameter in operation.get("parameters", ()):
            parameter["schema"] = _without_null(parameter["schema"])
    return document


def queries_of(document: dict[str, Any]) -> dict[str, set[str]]:
    """The query parameters of every operation, by its id."""
    return {
        operation["operationId"]: {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
        for _, _, operation in _operations(document)
    }


def _operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in _METHODS
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    return {**kinds[0], **rest}
