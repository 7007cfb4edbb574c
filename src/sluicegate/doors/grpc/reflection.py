"""Server reflection for the engine of the gRPC project: tools such as grpcurl learn the services and their messages from the server.

Only what the codec reads and writes is described, under the names that Envoy's and gRPC's own .proto files have. Source:
envoy/service/ratelimit/v3/rls.proto and what it imports; grpc/health/v1/health.proto.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, struct_pb2, wrappers_pb2
from grpc_reflection.v1alpha import reflection

__all__ = ["SERVICES", "add_reflection"]

_RLS: Final = "envoy.service.ratelimit.v3"
_COMMON: Final = "envoy.extensions.common.ratelimit.v3"
_HEALTH: Final = "grpc.health.v1"
_WELL_KNOWN: Final = (duration_pb2, struct_pb2, wrappers_pb2)

SERVICES: Final = {
    f"{_RLS}.RateLimitService": "ShouldRateLimit RateLimitRequest RateLimitResponse",
    f"{_HEALTH}.Health": "Check HealthCheckRequest HealthCheckResponse; Watch HealthCheckRequest stream HealthCheckResponse",
}
"""The methods of each service: name, request, response."""

_MESSAGES: Final = {
    "envoy.config.core.v3.HeaderValue": "string key = 1; string value = 2",
    f"{_COMMON}.RateLimitDescriptor": (
        f"repeated {_COMMON}.RateLimitDescriptor.Entry entries = 1; {_COMMON}.RateLimitDescriptor.RateLimitOverride limit = 2; "
        "google.protobuf.UInt64Value hits_addend = 3; bool is_negative_hits = 4"
    ),
    f"{_COMMON}.RateLimitDescriptor.Entry": "string key = 1; string value = 2",
    f"{_COMMON}.RateLimitDescriptor.RateLimitOverride": "uint32 requests_per_unit = 1; envoy.type.v3.RateLimitUnit unit = 2",
    f"{_RLS}.RateLimitRequest": f"string domain = 1; repeated {_COMMON}.RateLimitDescriptor descriptors = 2; uint32 hits_addend = 3",
    f"{_RLS}.RateLimitResponse": (
        f"{_RLS}.RateLimitResponse.Code overall_code = 1; repeated {_RLS}.RateLimitResponse.DescriptorStatus statuses = 2; "
        "repeated envoy.config.core.v3.HeaderValue response_headers_to_add = 3; bytes raw_body = 5; "
        "google.protobuf.Struct dynamic_metadata = 6"
    ),
    f"{_RLS}.RateLimitResponse.RateLimit": (
        f"uint32 requests_per_unit = 1; {_RLS}.RateLimitResponse.RateLimit.Unit unit = 2; string name = 3"
    ),
    f"{_RLS}.RateLimitResponse.DescriptorStatus": (
        f"{_RLS}.RateLimitResponse.Code code = 1; {_RLS}.RateLimitResponse.RateLimit current_limit = 2; uint32 limit_remaining = 3; "
        "google.protobuf.Duration duration_until_reset = 4"
    ),
    f"{_HEALTH}.HealthCheckRequest": "string service = 1",
    f"{_HEALTH}.HealthCheckResponse": f"{_HEALTH}.HealthCheckResponse.ServingStatus status = 1",
}
_ENUMS: Final = {
    "envoy.type.v3.RateLimitUnit": "UNKNOWN SECOND MINUTE HOUR DAY MONTH YEAR WEEK",
    f"{_RLS}.RateLimitResponse.Code": "UNKNOWN OK OVER_LIMIT",
    f"{_RLS}.RateLimitResponse.RateLimit.Unit": "UNKNOWN SECOND MINUTE HOUR DAY MONTH YEAR WEEK",
    f"{_HEALTH}.HealthCheckResponse.ServingStatus": "UNKNOWN SERVING NOT_SERVING SERVICE_UNKNOWN",
}
_PACKAGES: Final = {
    "envoy.config.core.v3": ("envoy/config/core/v3/base.proto", ()),
    "envoy.type.v3": ("envoy/type/v3/ratelimit_unit.proto", ()),
    _COMMON: ("envoy/extensions/common/ratelimit/v3/ratelimit.proto", ("envoy.type.v3",)),
    _RLS: ("envoy/service/ratelimit/v3/rls.proto", ("envoy.config.core.v3", _COMMON)),
    _HEALTH: ("grpc/health/v1/health.proto", ()),
}
"""The file of each package, and the packages that it needs, which stand before it."""


def add_reflection(server: Any) -> None:
    """Let a server of grpc.aio answer ``grpc.reflection.v1alpha.ServerReflection``; before it is started."""
    pool = descriptor_pool.DescriptorPool()
    for module in _WELL_KNOWN:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for package in _PACKAGES:
        pool.Add(_file(package))
    reflection.enable_server_reflection((*SERVICES, reflection.SERVICE_NAME), server, pool)


def _file(package: str) -> Any:
    path, needs = _PACKAGES[package]
    file = descriptor_pb2.FileDescriptorProto(name=path, package=package, syntax="proto3")
    file.dependency.extend(_PACKAGES[each][0] for each in needs)
    file.dependency.extend(module.DESCRIPTOR.name for module in _WELL_KNOWN)
    made: dict[str, Any] = {package: file}
    for name, text in _MESSAGES.items():
        owner, _, own = name.rpartition(".")
        if owner in made:
            outer = made[owner]
            message = made[name] = (outer.message_type if outer is file else outer.nested_type).add(name=own)
            for field in text.split("; "):
                _add_field(message, field)
    for name, text in _ENUMS.items():
        owner, _, own = name.rpartition(".")
        if owner in made:
            enum = made[owner].enum_type.add(name=own)
            for number, value in enumerate(text.split()):
                enum.value.add(name=value, number=number)
    for name, text in SERVICES.items():
        owner, _, own = name.rpartition(".")
        if owner == package:
            service = file.service.add(name=own)
            for method in text.split("; "):
                called, asked, *streams, answer = method.split()
                service.method.add(
                    name=called,
                    input_type=f".{package}.{asked}",
                    output_type=f".{package}.{answer}",
                    server_streaming=bool(streams),
                )
    return file


def _add_field(message: Any, text: str) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    *repeated, kind, name, _, number = text.split()
    field = message.field.add(
        name=name, number=int(number), label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
    )
    if "." in kind:
        field.type_name = f".{kind}"
        field.type = kinds.TYPE_ENUM if kind in _ENUMS else kinds.TYPE_MESSAGE
    else:
        field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
