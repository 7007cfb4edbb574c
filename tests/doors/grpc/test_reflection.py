"""Server reflection: what a tool learns from the server is enough to call it, and agrees with the messages as generated code knows them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2

Start = Callable[..., Awaitable[Any]]

REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
RLS = "envoy.service.ratelimit.v3"
SHARED = {
    "RateLimitRequest": f"{RLS}.RateLimitRequest",
    "RateLimitResponse": f"{RLS}.RateLimitResponse",
    "RateLimitDescriptor": "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor",
    "HealthCheckRequest": "grpc.health.v1.HealthCheckRequest",
    "HealthCheckResponse": "grpc.health.v1.HealthCheckResponse",
}


async def asked(channel: Any, **question: str) -> Any:
    """The answer to one question."""
    call = channel.stream_stream(
        REFLECTION,
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )(iter([reflection_pb2.ServerReflectionRequest(**question)]), timeout=20)
    return await call.read()


async def learned(channel: Any) -> Any:
    """A pool with the files of both services, as the server tells them."""
    pool = descriptor_pool.DescriptorPool()
    seen: dict[str, Any] = {}
    for symbol in (f"{RLS}.RateLimitService", "grpc.health.v1.Health"):
        answer = await asked(channel, file_containing_symbol=symbol)
        for data in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            seen[file.name] = file

    def add(name: str) -> None:
        if file := seen.pop(name, None):
            for needed in file.dependency:
                add(needed)
            pool.Add(file)

    for name in list(seen):
        add(name)
    return pool


async def test_what_is_learned_is_enough_to_call(start_door: Start) -> None:
    """A client without a .proto file lists the services, reads their messages, and has a request decided."""
    server = await start_door(engine="grpcio")
    async with grpc.aio.insecure_channel(server.target) as channel:
        services = (await asked(channel, list_services="")).list_services_response.service
        assert {each.name for each in services} == {
            f"{RLS}.RateLimitService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        pool = await learned(channel)
        method = pool.FindServiceByName(f"{RLS}.RateLimitService").methods_by_name["ShouldRateLimit"]
        request, response = (message_factory.GetMessageClass(each) for each in (method.input_type, method.output_type))
        made = request(domain="edge", descriptors=[{"entries": [{"key": "api_key", "value": "a"}]}])
        path = f"/{RLS}.RateLimitService/ShouldRateLimit"
        answer = response.FromString(await channel.unary_unary(path)(made.SerializeToString(), timeout=60))
    (status,) = answer.statuses
    assert (status.current_limit.name, status.limit_remaining) == ("per-key", 4)
    assert {each.key.lower() for each in answer.response_headers_to_add} >= {"x-ratelimit-limit"}
    watch = pool.FindServiceByName("grpc.health.v1.Health").methods_by_name["Watch"]
    assert watch.server_streaming
    assert not method.server_streaming


async def test_fields_are_those_of_generated_code(start_door: Start, pb: Any) -> None:
    """Every field that is told has the number, the type and the label that it has in the .proto file of the codec's tests."""
    server = await start_door(engine="grpcio")
    async with grpc.aio.insecure_channel(server.target) as channel:
        pool = await learned(channel)
    for name, full_name in SHARED.items():
        compare(pool.FindMessageTypeByName(full_name), getattr(pb, name).DESCRIPTOR)


def compare(told: Any, known: Any) -> None:
    """Compare two messages, and those inside."""
    assert told.fields
    for field in told.fields:
        other = known.fields_by_name[field.name]
        assert (field.number, field.is_repeated) == (other.number, other.is_repeated), field.full_name
        if field.enum_type is None:
            # The .proto file of the tests has the unit as a bare number.
            assert field.type == other.type, field.full_name
        elif other.enum_type is not None:
            numbers = ({each.name: each.number for each in kind.values} for kind in (field.enum_type, other.enum_type))
            assert next(numbers) == next(numbers)
    for inner in told.nested_types:
        compare(inner, known.nested_types_by_name[inner.name])


@pytest.mark.parametrize(("engine", "settings"), [("ngh2", {}), ("grpcio", {"token": "secret"})])
async def test_where_it_is_not_offered(start_door: Start, engine: str, settings: dict[str, str]) -> None:
    """ngh2 has no reflection, and a server with a token tells nobody of itself."""
    server = await start_door(engine=engine, **settings)
    async with grpc.aio.insecure_channel(server.target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asked(channel, list_services="")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
