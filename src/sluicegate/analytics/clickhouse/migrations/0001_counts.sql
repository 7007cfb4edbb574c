-- Batches land here as they were told, one JSON object a row; views take them apart. Nothing is kept in this table itself.
CREATE TABLE IF NOT EXISTS landing
(
    body String
)
ENGINE = Null;

-- One row for each batch: what it could not tell, and what it watched (-1: nothing).
CREATE TABLE IF NOT EXISTS batches
(
    batch UInt64,
    node LowCardinality(String),
    at_us Int64 CODEC(DoubleDelta, ZSTD(1)),
    until_us Int64 CODEC(DoubleDelta, ZSTD(1)),
    watch_level Int16,
    dropped_batches UInt64 CODEC(T64, ZSTD(1)),
    dropped_decisions UInt64 CODEC(T64, ZSTD(1)),
    dropped_tokens UInt64 CODEC(T64, ZSTD(1)),
    dropped_samples UInt64 CODEC(T64, ZSTD(1)),
    dropped_subjects UInt64 CODEC(T64, ZSTD(1)),
    dropped_demand UInt64 CODEC(T64, ZSTD(1)),
    dropped_admissions UInt64 CODEC(T64, ZSTD(1)),
    landed DateTime('UTC') DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    at DateTime64(6, 'UTC') ALIAS fromUnixTimestamp64Micro(at_us, 'UTC')
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(landed)
ORDER BY (at_us, batch)
TTL landed + INTERVAL 7776000 SECOND
SETTINGS ttl_only_drop_parts = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS batches_of_batches TO batches AS
SELECT
    sipHash64(JSONExtractString(body, 'id')) AS batch,
    JSONExtractString(body, 'node') AS node,
    toInt64(JSONExtractUInt(body, 'at_us')) AS at_us,
    toInt64(JSONExtractUInt(body, 'until_us')) AS until_us,
    toInt16(if(JSONType(body, 'watch') = 'Object', JSONExtractInt(body, 'watch', 'level'), -1)) AS watch_level,
    JSONExtractUInt(body, 'dropped', 'batches') AS dropped_batches,
    JSONExtractUInt(body, 'dropped', 'decisions') AS dropped_decisions,
    JSONExtractUInt(body, 'dropped', 'tokens') AS dropped_tokens,
    JSONExtractUInt(body, 'dropped', 'samples') AS dropped_samples,
    JSONExtractUInt(body, 'dropped', 'subjects') AS dropped_subjects,
    JSONExtractUInt(body, 'dropped', 'demand') AS dropped_demand,
    JSONExtractUInt(body, 'dropped', 'admissions') AS dropped_admissions
FROM (SELECT DISTINCT body FROM landing);

-- What one batch told of one second: the finest cells, and what the longer ones are made of.
CREATE TABLE IF NOT EXISTS requests_seconds
(
    at_s Int64 CODEC(DoubleDelta, ZSTD(1)),
    rule LowCardinality(String),
    outcome LowCardinality(String),
    tier LowCardinality(String),
    version Int64,
    node LowCardinality(String),
    degraded Bool,
    batch UInt64,
    decisions UInt64 CODEC(T64, ZSTD(1)),
    tokens UInt64 CODEC(T64, ZSTD(1)),
    landed DateTime('UTC') DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    at DateTime64(3, 'UTC') ALIAS fromUnixTimestamp64Milli(at_s * 1000, 'UTC'),
    INDEX at_s_range at_s TYPE minmax GRANULARITY 1,
    INDEX landed_range landed TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(landed)
ORDER BY (rule, at_s, outcome, tier, version, node, degraded, batch)
TTL landed + INTERVAL 21600 SECOND
SETTINGS ttl_only_drop_parts = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS requests_of_batches TO requests_seconds AS
SELECT
    intDiv(JSONExtractUInt(body, 'at_us'), 1000000) AS at_s,
    told.rule AS rule,
    told.outcome AS outcome,
    told.tier AS tier,
    told.version AS version,
    JSONExtractString(body, 'node') AS node,
    told.degraded AS degraded,
    sipHash64(JSONExtractString(body, 'id')) AS batch,
    toUInt64(least(sum(toUInt128(told.decisions)), 9223372036854775807)) AS decisions,
    toUInt64(least(sum(toUInt128(told.tokens)), 9223372036854775807)) AS tokens
FROM
(
    SELECT
        body,
        arrayJoin(JSONExtract(body, 'requests', 'Array(Tuple(rule String, outcome String, tier String, version Int64, decisions UInt64, tokens UInt64, degraded Bool))')) AS told
    FROM (SELECT DISTINCT body FROM landing)
)
GROUP BY at_s, rule, outcome, tier, version, node, degraded, batch;

CREATE TABLE IF NOT EXISTS requests_minutes
(
    at_s Int64 CODEC(DoubleDelta, ZSTD(1)),
    rule LowCardinality(String),
    outcome LowCardinality(String),
    tier LowCardinality(String),
    version Int64,
    node LowCardinality(String),
    degraded Bool,
    decisions SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    tokens SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    landed SimpleAggregateFunction(max, DateTime('UTC')) DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    at DateTime64(3, 'UTC') ALIAS fromUnixTimestamp64Milli(at_s * 1000, 'UTC'),
    INDEX at_s_range at_s TYPE minmax GRANULARITY 1
)
ENGINE = AggregatingMergeTree
PARTITION BY toStartOfInterval(toDateTime(least(greatest(at_s, 0), 4102444800), 'UTC'), INTERVAL 1 DAY)
ORDER BY (rule, at_s, outcome, tier, version, node, degraded)
TTL landed + INTERVAL 172800 SECOND
SETTINGS ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS requests_hours
(
    at_s Int64 CODEC(DoubleDelta, ZSTD(1)),
    rule LowCardinality(String),
    outcome LowCardinality(String),
    tier LowCardinality(String),
    version Int64,
    node LowCardinality(String),
    degraded Bool,
    decisions SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    tokens SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    landed SimpleAggregateFunction(max, DateTime('UTC')) DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    at DateTime64(3, 'UTC') ALIAS fromUnixTimestamp64Milli(at_s * 1000, 'UTC'),
    INDEX at_s_range at_s TYPE minmax GRANULARITY 1
)
ENGINE = AggregatingMergeTree
PARTITION BY toStartOfInterval(toDateTime(least(greatest(at_s, 0), 4102444800), 'UTC'), INTERVAL 1 MONTH)
ORDER BY (rule, at_s, outcome, tier, version, node, degraded)
TTL landed + INTERVAL 7776000 SECOND
SETTINGS ttl_only_drop_parts = 1;

-- What one batch told of one second: the finest cells, and what the longer ones are made of.
CREATE TABLE IF NOT EXISTS rules_seconds
(
    at_s Int64 CODEC(DoubleDelta, ZSTD(1)),
    rule LowCardinality(String),
    outcome LowCardinality(String),
    tier LowCardinality(String),
    version Int64,
    node LowCardinality(String),
    batch UInt64,
    decisions UInt64 CODEC(T64, ZSTD(1)),
    tokens UInt64 CODEC(T64, ZSTD(1)),
    landed DateTime('UTC') DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    at DateTime64(3, 'UTC') ALIAS fromUnixTimestamp64Milli(at_s * 1000, 'UTC'),
    INDEX at_s_range at_s TYPE minmax GRANULARITY 1,
    INDEX landed_range landed TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(landed)
ORDER BY (rule, at_s, outcome, tier, version, node, batch)
TTL landed + INTERVAL 21600 SECOND
SETTINGS ttl_only_drop_parts = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS rules_of_batches TO rules_seconds AS
SELECT
    intDiv(JSONExtractUInt(body, 'at_us'), 1000000) AS at_s,
    told.rule AS rule,
    told.outcome AS outcome,
    told.tier AS tier,
    told.version AS version,
    JSONExtractString(body, 'node') AS node,
    sipHash64(JSONExtractString(body, 'id')) AS batch,
    toUInt64(least(sum(toUInt128(told.decisions)), 9223372036854775807)) AS decisions,
    toUInt64(least(sum(toUInt128(told.tokens)), 9223372036854775807)) AS tokens
FROM
(
    SELECT
        body,
        arrayJoin(JSONExtract(body, 'rules', 'Array(Tuple(rule String, outcome String, tier String, version Int64, decisions UInt64, tokens UInt64))')) AS told
    FROM (SELECT DISTINCT body FROM landing)
)
GROUP BY at_s, rule, outcome, tier, version, node, batch;

CREATE TABLE IF NOT EXISTS rules_minutes
(
    at_s Int64 CODEC(DoubleDelta, ZSTD(1)),
    rule LowCardinality(String),
    outcome LowCardinality(String),
    tier LowCardinality(String),
    version Int64,
    node LowCardinality(String),
    decisions SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    tokens SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    landed SimpleAggregateFunction(max, DateTime('UTC')) DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    at DateTime64(3, 'UTC') ALIAS fromUnixTimestamp64Milli(at_s * 1000, 'UTC'),
    INDEX at_s_range at_s TYPE minmax GRANULARITY 1
)
ENGINE = AggregatingMergeTree
PARTITION BY toStartOfInterval(toDateTime(least(greatest(at_s, 0), 4102444800), 'UTC'), INTERVAL 1 DAY)
ORDER BY (rule, at_s, outcome, tier, version, node)
TTL landed + INTERVAL 172800 SECOND
SETTINGS ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS rules_hours
(
    at_s Int64 CODEC(DoubleDelta, ZSTD(1)),
    rule LowCardinality(String),
    outcome LowCardinality(String),
    tier LowCardinality(String),
    version Int64,
    node LowCardinality(String),
    decisions SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    tokens SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    landed SimpleAggregateFunction(max, DateTime('UTC')) DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    at DateTime64(3, 'UTC') ALIAS fromUnixTimestamp64Milli(at_s * 1000, 'UTC'),
    INDEX at_s_range at_s TYPE minmax GRANULARITY 1
)
ENGINE = AggregatingMergeTree
PARTITION BY toStartOfInterval(toDateTime(least(greatest(at_s, 0), 4102444800), 'UTC'), INTERVAL 1 MONTH)
ORDER BY (rule, at_s, outcome, tier, version, node)
TTL landed + INTERVAL 7776000 SECOND
SETTINGS ttl_only_drop_parts = 1;

