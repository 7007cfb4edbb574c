"""Of the way over Kafka."""

from __future__ import annotations

from typing import Final

__all__ = [
    "KAFKA_BACKOFF_MAX_S",
    "KAFKA_BACKOFF_S",
    "KAFKA_BLOCK_BATCHES_MAX",
    "KAFKA_BLOCK_BYTES_MAX",
    "KAFKA_BLOCK_LINGER_S",
    "KAFKA_CONFIG_BYTES_MAX",
    "KAFKA_HELD_BYTES_MAX",
    "KAFKA_MESSAGE_BYTES_MAX",
    "KAFKA_MESSAGE_TIMEOUT_MS",
    "KAFKA_POLL_INTERVAL_MS",
    "KAFKA_PREFETCH_KB",
    "KAFKA_REQUEST_TIMEOUT_S",
    "KAFKA_SESSION_TIMEOUT_MS",
    "KAFKA_TOPIC_RETENTION_S",
    "KAFKA_UNACKNOWLEDGED_BYTES_MAX",
    "KAFKA_UNACKNOWLEDGED_MAX",
]

# Bytes of one batch on the wire before compression. The largest that a node makes is below 3 MB; the topic is made to take as much.
KAFKA_MESSAGE_BYTES_MAX: Final = 8_388_608

# What a node's producer holds until the broker has acknowledged it: at one batch a second a quarter of an hour of a usual node (40 KB a batch), two
# minutes of one that tells all it may (240 KB). Beyond it the node keeps batches itself, and drops the oldest when that is full too.
KAFKA_UNACKNOWLEDGED_BYTES_MAX: Final = 33_554_432
KAFKA_UNACKNOWLEDGED_MAX: Final = 4_096

# Milliseconds until one attempt to deliver a batch is given up; it is then offered again, the same bytes. Short enough to notice what has changed
# meanwhile (a topic that was made, a broker that was replaced), longer than an election.
KAFKA_MESSAGE_TIMEOUT_MS: Final = 20_000

# A block is what a consumer puts into the home at once: so many batches, or bytes, or seconds, whichever comes first. ClickHouse wants few
# large inserts; at 100 batches a second over 12 partitions these are two or three a second.
KAFKA_BLOCK_BATCHES_MAX: Final = 1_000
KAFKA_BLOCK_BYTES_MAX: Final = 8_388_608
KAFKA_BLOCK_LINGER_S: Final = 5.0

# What a consumer has read and not yet put into the home. Beyond it partitions are paused; what the client library fetches ahead comes on top.
KAFKA_HELD_BYTES_MAX: Final = 67_108_864
KAFKA_PREFETCH_KB: Final = 16_384

# Seconds between attempts while the home or the broker is away: doubled each time, and a random share of that.
KAFKA_BACKOFF_S: Final = 0.5
KAFKA_BACKOFF_MAX_S: Final = 30.0

# Seconds for one question to the broker: offsets, commits, topics.
KAFKA_REQUEST_TIMEOUT_S: Final = 10.0

# Milliseconds until a consumer that says nothing is taken for gone, and until one that is stuck in an insert is. A home that takes
# longer for a block is asked again by the next owner of the partition, which changes nothing.
KAFKA_SESSION_TIMEOUT_MS: Final = 15_000
KAFKA_POLL_INTERVAL_MS: Final = 300_000

# Seconds that a topic keeps what is told, read or not: a week-end without consumers, and a day more.
KAFKA_TOPIC_RETENTION_S: Final = 259_200

# Bytes of a file of client properties; a long one has fifty lines.
KAFKA_CONFIG_BYTES_MAX: Final = 65_536
