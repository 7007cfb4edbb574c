"""Of server processes: listeners, workers, configuration."""

from __future__ import annotations

from typing import Final

__all__ = [
    "CERTIFICATE_BYTES_MAX",
    "CONFIG_BYTES_MAX",
    "CONTROL_START_S",
    "DEMO_BYTES_KEPT",
    "DEMO_STREAM_LINES_MAX",
    "DRAIN_GRACE_S",
    "DURATION_S_MAX",
    "EMBEDDED_MEMORY_MB",
    "EMBEDDED_MEMORY_MB_MAX",
    "EMBEDDED_MEMORY_MB_MIN",
    "EMBEDDED_START_S",
    "EMBEDDED_STOP_S",
    "EMBEDDED_TIMEOUT_MS",
    "FLEET_ANSWER_BYTES_MAX",
    "FLEET_ANSWER_S",
    "LISTEN_BACKLOG",
    "ORPHAN_DRAIN_S",
    "ORPHAN_LIFE_S",
    "PORT_MAX",
    "RESTART_PAUSE_FIRST_S",
    "RESTART_PAUSE_MAX_S",
    "STEADY_LIFE_S",
    "SWEEP_INTERVAL_S",
    "TLS_EXPIRY_WARNING_S",
    "TLS_HANDSHAKES_MAX",
    "TLS_HANDSHAKE_S_MAX",
    "TLS_POLL_S",
    "TLS_SHUTDOWN_S_MAX",
    "UNIX_PATH_BYTES_MAX",
    "WORKERS_MAX",
    "WORKER_MESSAGE_BYTES_MAX",
    "WORKER_START_S",
    "WORKER_STOP_MARGIN_S",
]

# The largest TCP port number.
PORT_MAX: Final = 65_535

# Bytes of a Unix socket's path. Linux allows 108 with the closing zero; a longer one would be cut off silently by some
# clients, so it is refused when it is configured.
UNIX_PATH_BYTES_MAX: Final = 107

# Connections the kernel may hold ready for a listener. A burst of reconnecting clients after a restart should wait in
# the queue rather than be refused; the kernel caps it at net.core.somaxconn (4096 by default).
LISTEN_BACKLOG: Final = 2_048

# Seconds at the beginning of a drain in which kept connections stay open. A request that a client has sent already, or sends
# before it hears of the end, is answered (with "Connection: close"); without it each busy client would lose one request.
DRAIN_GRACE_S: Final = 0.2

# Seconds between two sweeps over a door's connections; every timeout of a door is late by at most this. A sweep of
# 10,000 connections takes about a millisecond, so a shorter interval would cost more than precision is worth.
SWEEP_INTERVAL_S: Final = 0.5

# Bytes of the file that holds the values of flags. There are about thirty flags; a larger file is not one of ours.
CONFIG_BYTES_MAX: Final = 65_536

# The longest time a flag may ask for, a month in seconds. Nothing a server waits for takes longer, and no timer overflows.
DURATION_S_MAX: Final = 31 * 86_400

# Bytes of a request's target, and of its body, that the demo backend keeps. It looks at paths of a few words.
DEMO_BYTES_KEPT: Final = 16_384

# Lines of one demo stream; at ten a second the longest lasts a quarter of an hour.
DEMO_STREAM_LINES_MAX: Final = 9_000

# Worker processes of one server. The largest machines have a few hundred cores; more is a slip.
WORKERS_MAX: Final = 512

# Seconds a worker may take to open its listeners. Key sets of issuers that do not answer take five, a store that does not answer one.
WORKER_START_S: Final = 30.0

# Seconds that workers have beyond --drain-delay and --drain-timeout before the supervisor ends them.
WORKER_STOP_MARGIN_S: Final = 5.0

# Seconds in which a worker whose supervisor is gone finishes what is in flight, and after which it ends in whatever state it is.
ORPHAN_DRAIN_S: Final = 2.0
ORPHAN_LIFE_S: Final = 3.0

# Restarts of workers and of the embedded store: a life this long in seconds was a good one, the next starts at once. After shorter
# ones the pauses grow from the first to the longest, so that what cannot live takes little of the machine.
STEADY_LIFE_S: Final = 10.0
RESTART_PAUSE_FIRST_S: Final = 0.25
RESTART_PAUSE_MAX_S: Final = 10.0

# Bytes of one message between supervisor and worker. The longest holds all settings, about 3 KB, or a reason made of many problems.
WORKER_MESSAGE_BYTES_MAX: Final = 1_048_576

# What one worker asks another (metrics, refunds): seconds to wait, and bytes of one answer. Metrics are read in milliseconds; with
# 5,000 rules and every label in use they are about 5 MB.
FLEET_ANSWER_S: Final = 1.0
FLEET_ANSWER_BYTES_MAX: Final = 16_777_216

# Embedded store: mebibytes of counters, unless told otherwise, and the least and most it can be told. 512 hold about three million counters.
EMBEDDED_MEMORY_MB: Final = 512
EMBEDDED_MEMORY_MB_MIN: Final = 16
EMBEDDED_MEMORY_MB_MAX: Final = 1_048_576

# Embedded store: milliseconds one decision may take, unless told otherwise. There is no network between; a late answer means that the
# machine is busy, and then a late decision by the shared counter is better than one by a part of the limit.
EMBEDDED_TIMEOUT_MS: Final = 250

# Embedded store: seconds it may take to answer after its start (a tenth is usual), and to end after it was told to.
EMBEDDED_START_S: Final = 10.0
EMBEDDED_STOP_S: Final = 3.0

# Handshakes of TLS under way on one listener. Each takes some 50 KiB; an honest one is done in two round trips, so that this many are under way
# only where somebody is slow on purpose. Beyond it the oldest is given up.
TLS_HANDSHAKES_MAX: Final = 1_000

# Seconds a TLS handshake may take. Over the slowest mobile line it takes three.
TLS_HANDSHAKE_S_MAX: Final = 10.0

# Seconds after the end of a TLS connection for what is still to be sent and for the peer's last word. The doors' own timeouts are mostly shorter.
TLS_SHUTDOWN_S_MAX: Final = 30.0

# Seconds between two looks at the files of certificates. A change counts when two looks saw the same, so that a renewal is in service
# after three of them, and a certificate is not taken without the key that is being written.
TLS_POLL_S: Final = 1.0

# Seconds before a certificate ends at which the log warns, and an expired one is an error: a week, in which whoever renews them can act.
TLS_EXPIRY_WARNING_S: Final = 7 * 86_400

# Bytes of one PEM file of a listener's certificates. A chain has some ten thousand; the authorities of a whole system have 250,000.
CERTIFICATE_BYTES_MAX: Final = 1_048_576

# Seconds that a rules service beside its nodes may take to answer. Two are usual; bringing the tables of a large database to a new release takes longest.
CONTROL_START_S: Final = 120.0
