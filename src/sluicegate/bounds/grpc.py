"""Of the gRPC door."""

from __future__ import annotations

from typing import Final

__all__ = [
    "GRPC_ANSWERS_MAX",
    "GRPC_CONNECTIONS_MAX",
    "GRPC_DESCRIPTORS_MAX",
    "GRPC_ENTRIES_MAX",
    "GRPC_FIELDS_MAX",
    "GRPC_GROUP_DEPTH_MAX",
    "GRPC_HEAD_BYTES_MAX",
    "GRPC_LINGER_BYTES_MAX",
    "GRPC_MEMO_BYTES_MAX",
    "GRPC_MEMO_MAX",
    "GRPC_MESSAGE_BYTES_MAX",
    "GRPC_NOTICE_S",
    "GRPC_OVERRIDES_MAX",
    "GRPC_PENDING_BYTES_MAX",
    "GRPC_SERVICE_CHARS_MAX",
    "GRPC_STREAMS_MAX",
    "GRPC_TEXTS_MAX",
    "GRPC_WATCHES_MAX",
]

# gRPC door: bytes of one message. A descriptor is a few dozen bytes; Envoy sends some, and a request header of each may be in one.
GRPC_MESSAGE_BYTES_MAX: Final = 65_536

# gRPC door: descriptors of one request, and entries of one descriptor. Each descriptor is a set of charges that one call of the store decides.
GRPC_DESCRIPTORS_MAX: Final = 64
GRPC_ENTRIES_MAX: Final = 64

# gRPC door: groups inside groups in a field that is skipped; generated code has the same limit on depth.
GRPC_GROUP_DEPTH_MAX: Final = 100

# gRPC door: request messages whose meaning and charges are remembered, and the length of one. Twice as many may be held, of about 1 KB each.
GRPC_MEMO_MAX: Final = 16_384
GRPC_MEMO_BYTES_MAX: Final = 512

# gRPC door: texts of headers and durations that are kept ready, by their number.
GRPC_TEXTS_MAX: Final = 4_096

# gRPC door: whole answers kept ready, about 300 bytes each. One depends on the rule, what remains and the seconds until it is full, and on no
# client: a rule of 100 a minute has a few thousand.
GRPC_ANSWERS_MAX: Final = 16_384

# gRPC door: counters of limits that requests bring along, kept ready by unit and number; a configuration has a handful.
GRPC_OVERRIDES_MAX: Final = 2_048

# gRPC door: connections at once. A proxy opens one for each of its threads.
GRPC_CONNECTIONS_MAX: Final = 4_096

# gRPC door: calls under way on one connection; beyond it a stream is refused. Answers in memory leave at once; a thousand more wait for a store.
GRPC_STREAMS_MAX: Final = 1_024

# gRPC door: health watches at once, of all connections of a process. A client has one for each of its connections; each is looked after now and then.
GRPC_WATCHES_MAX: Final = 1_024

# gRPC door: characters of a service's name in a health check that are looked at. The names that there are have at most 44; a watch keeps its own.
GRPC_SERVICE_CHARS_MAX: Final = 128

# gRPC door: bytes and fields of a request's header block, decoded. Envoy sends about 300 bytes in ten fields.
GRPC_HEAD_BYTES_MAX: Final = 16_384
GRPC_FIELDS_MAX: Final = 100

# gRPC door: bytes of calls that are not complete, on one connection. A usual call comes whole, in one read; more than this at once is a peer that
# begins calls and does not end them, which would hold a message for each of its streams.
GRPC_PENDING_BYTES_MAX: Final = 1_048_576

# Seconds between telling a peer that a connection will end and ending it: time for calls that were on their way when it was told.
GRPC_NOTICE_S: Final = 0.1

# gRPC door: after the last word on a connection, at most this much of what the peer still sends is thrown away before it is cut.
GRPC_LINGER_BYTES_MAX: Final = 1_048_576
