-- Clients that came most, by batch, minute and hour.
CREATE TABLE IF NOT EXISTS offenders_seconds
(
    at_s Int64 CODEC(DoubleDelta, ZSTD(1)),
    kind LowCardinality(String),
    rule LowCardinality(String),
    subject String CODEC(ZSTD(1)),
    node LowCardinality(String),
    batch UInt64,
    times UInt64 CODEC(T64, ZSTD(1)),
    error UInt64 CODEC(T64, ZSTD(1)),
    untold UInt64 CODEC(T64, ZSTD(1)),
    sample_rate Float64,
    landed DateTime('UTC') DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    INDEX at_s_range at_s TYPE minmax GRANULARITY 1,
    INDEX landed_range landed TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(landed)
ORDER BY (kind, rule, at_s, subject, node, batch)
TTL landed + INTERVAL 21600 SECOND
SETTINGS ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS offenders_minutes
(
    at_s Int64 CODEC(DoubleDelta, ZSTD(1)),
    kind LowCardinality(String),
    rule LowCardinality(String),
    subject String CODEC(ZSTD(1)),
    node LowCardinality(String),
    times SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    error SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    untold SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    sample_rate SimpleAggregateFunction(min, Float64),
    landed SimpleAggregateFunction(max, DateTime('UTC')) DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    INDEX at_s_range at_s TYPE minmax GRANULARITY 1
)
ENGINE = AggregatingMergeTree
PARTITION BY toStartOfInterval(toDateTime(least(greatest(at_s, 0), 4102444800), 'UTC'), INTERVAL 1 DAY)
ORDER BY (kind, rule, at_s, subject, node)
TTL landed + INTERVAL 172800 SECOND
SETTINGS ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS offenders_hours
(
    at_s Int64 CODEC(DoubleDelta, ZSTD(1)),
    kind LowCardinality(String),
    rule LowCardinality(String),
    subject String CODEC(ZSTD(1)),
    node LowCardinality(String),
    times SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    error SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    untold SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    sample_rate SimpleAggregateFunction(min, Float64),
    landed SimpleAggregateFunction(max, DateTime('UTC')) DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    INDEX at_s_range at_s TYPE minmax GRANULARITY 1
)
ENGINE = AggregatingMergeTree
PARTITION BY toStartOfInterval(toDateTime(least(greatest(at_s, 0), 4102444800), 'UTC'), INTERVAL 1 MONTH)
ORDER BY (kind, rule, at_s, subject, node)
TTL landed + INTERVAL 7776000 SECOND
SETTINGS ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS offender_totals_seconds
(
    at_s Int64 CODEC(DoubleDelta, ZSTD(1)),
    kind LowCardinality(String),
    rule LowCardinality(String),
    node LowCardinality(String),
    batch UInt64,
    total UInt64 CODEC(T64, ZSTD(1)),
    untold UInt64 CODEC(T64, ZSTD(1)),
    sample_rate Float64,
    landed DateTime('UTC') DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    INDEX at_s_range at_s TYPE minmax GRANULARITY 1,
    INDEX landed_range landed TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(landed)
ORDER BY (kind, rule, at_s, node, batch)
TTL landed + INTERVAL 21600 SECOND
SETTINGS ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS offender_totals_minutes
(
    at_s Int64 CODEC(DoubleDelta, ZSTD(1)),
    kind LowCardinality(String),
    rule LowCardinality(String),
    node LowCardinality(String),
    total SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    untold SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    sample_rate SimpleAggregateFunction(min, Float64),
    landed SimpleAggregateFunction(max, DateTime('UTC')) DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    INDEX at_s_range at_s TYPE minmax GRANULARITY 1
)
ENGINE = AggregatingMergeTree
PARTITION BY toStartOfInterval(toDateTime(least(greatest(at_s, 0), 4102444800), 'UTC'), INTERVAL 1 DAY)
ORDER BY (kind, rule, at_s, node)
TTL landed + INTERVAL 172800 SECOND
SETTINGS ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS offender_totals_hours
(
    at_s Int64 CODEC(DoubleDelta, ZSTD(1)),
    kind LowCardinality(String),
    rule LowCardinality(String),
    node LowCardinality(String),
    total SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    untold SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    sample_rate SimpleAggregateFunction(min, Float64),
    landed SimpleAggregateFunction(max, DateTime('UTC')) DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    INDEX at_s_range at_s TYPE minmax GRANULARITY 1
)
ENGINE = AggregatingMergeTree
PARTITION BY toStartOfInterval(toDateTime(least(greatest(at_s, 0), 4102444800), 'UTC'), INTERVAL 1 MONTH)
ORDER BY (kind, rule, at_s, node)
TTL landed + INTERVAL 7776000 SECOND
SETTINGS ttl_only_drop_parts = 1;

-- ``untold`` of a client: that of its rule and kind in the batch, which its ``times`` includes.
CREATE MATERIALIZED VIEW IF NOT EXISTS offenders_of_batches TO offenders_seconds AS
SELECT
    intDiv(JSONExtractUInt(body, 'at_us'), 1000000) AS at_s,
    told.kind AS kind,
    told.rule AS rule,
    told.subject AS subject,
    JSONExtractString(body, 'node') AS node,
    sipHash64(JSONExtractString(body, 'id')) AS batch,
    toUInt64(least(sum(toUInt128(told.times)), 9223372036854775807)) AS times,
    toUInt64(least(sum(toUInt128(told.error)), 9223372036854775807)) AS error,
    max(arrayMax(arrayConcat([toUInt64(0)], arrayMap(one -> one.untold, arrayFilter(one -> one.kind = told.kind AND one.rule = told.rule, totals))))) AS untold,
    min(ifNull(told.sample_rate, 1)) AS sample_rate
FROM
(
    SELECT
        body,
        JSONExtract(body, 'totals', 'Array(Tuple(rule String, kind String, total UInt64, untold UInt64, sample_rate Nullable(Float64)))') AS totals,
        arrayJoin(JSONExtract(body, 'subjects', 'Array(Tuple(rule String, subject String, kind String, times UInt64, error UInt64, sample_rate Nullable(Float64)))')) AS told
    FROM (SELECT DISTINCT body FROM landing)
)
GROUP BY at_s, kind, rule, subject, node, batch;

CREATE MATERIALIZED VIEW IF NOT EXISTS offender_totals_of_batches TO offender_totals_seconds AS
SELECT
    intDiv(JSONExtractUInt(body, 'at_us'), 1000000) AS at_s,
    told.kind AS kind,
    told.rule AS rule,
    JSONExtractString(body, 'node') AS node,
    sipHash64(JSONExtractString(body, 'id')) AS batch,
    max(told.total) AS total,
    max(told.untold) AS untold,
    min(ifNull(told.sample_rate, 1)) AS sample_rate
FROM
(
    SELECT body, arrayJoin(JSONExtract(body, 'totals', 'Array(Tuple(rule String, kind String, total UInt64, untold UInt64, sample_rate Nullable(Float64)))')) AS told
    FROM (SELECT DISTINCT body FROM landing)
)
GROUP BY at_s, kind, rule, node, batch;
