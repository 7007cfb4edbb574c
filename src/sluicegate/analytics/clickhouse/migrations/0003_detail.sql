-- Sampled decisions, as they were told.
CREATE TABLE IF NOT EXISTS decisions
(
    at_us Int64 CODEC(DoubleDelta, ZSTD(1)),
    rule LowCardinality(String),
    outcome LowCardinality(String),
    tier LowCardinality(String),
    version Int64,
    sample_rate Float64,
    rules Array(LowCardinality(String)),
    subjects Map(String, String) CODEC(ZSTD(1)),
    method LowCardinality(String),
    endpoint String CODEC(ZSTD(1)),
    cost UInt64 CODEC(T64, ZSTD(1)),
    limit Nullable(UInt64) CODEC(ZSTD(1)),
    remaining Nullable(UInt64) CODEC(ZSTD(1)),
    retry_after_ms Nullable(UInt64) CODEC(ZSTD(1)),
    degraded Bool,
    node LowCardinality(String),
    batch UInt64,
    place UInt32,
    landed DateTime('UTC') DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    at DateTime64(6, 'UTC') ALIAS fromUnixTimestamp64Micro(at_us, 'UTC'),
    INDEX at_us_range at_us TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(landed)
ORDER BY (rule, at_us, batch, place)
TTL landed + INTERVAL 86400 SECOND
SETTINGS ttl_only_drop_parts = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS decisions_of_batches TO decisions AS
SELECT
    told.at_us AS at_us,
    told.rule AS rule,
    told.outcome AS outcome,
    told.tier AS tier,
    told.version AS version,
    told.sample_rate AS sample_rate,
    told.rules AS rules,
    told.subjects AS subjects,
    told.method AS method,
    told.endpoint AS endpoint,
    if(JSONHas(raw, 'cost'), told.cost, 1) AS cost,
    told.limit AS limit,
    told.remaining AS remaining,
    if(JSONHas(raw, 'retry_after_ms'), told.retry_after_ms, 0) AS retry_after_ms,
    told.degraded AS degraded,
    node,
    batch,
    place
FROM
(
    SELECT
        JSONExtractString(body, 'node') AS node,
        sipHash64(JSONExtractString(body, 'id')) AS batch,
        JSONExtractArrayRaw(body, 'decisions') AS raws,
        arrayJoin(arrayEnumerate(raws)) AS place,
        raws[place] AS raw,
        JSONExtract(raw, 'Tuple(at_us Int64, rule String, outcome String, tier String, version Int64, sample_rate Float64, rules Array(String), subjects Map(String, String), method String, endpoint String, cost UInt64, limit Nullable(UInt64), remaining Nullable(UInt64), retry_after_ms Nullable(UInt64), degraded Bool)') AS told
    FROM (SELECT DISTINCT body FROM landing)
);

-- What chosen clients asked for.
CREATE TABLE IF NOT EXISTS demand
(
    rule LowCardinality(String),
    tier LowCardinality(String),
    subject String CODEC(ZSTD(1)),
    at_us Int64 CODEC(DoubleDelta, ZSTD(1)),
    span_s Int64,
    asked UInt64 CODEC(T64, ZSTD(1)),
    tokens UInt64 CODEC(T64, ZSTD(1)),
    refused UInt64 CODEC(T64, ZSTD(1)),
    peak_1s UInt64 CODEC(T64, ZSTD(1)),
    peak_10s UInt64 CODEC(T64, ZSTD(1)),
    sample_rate Float64,
    node LowCardinality(String),
    batch UInt64,
    place UInt32,
    landed DateTime('UTC') DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    at DateTime64(6, 'UTC') ALIAS fromUnixTimestamp64Micro(at_us, 'UTC'),
    INDEX at_us_range at_us TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(landed)
ORDER BY (rule, at_us, batch, place)
TTL landed + INTERVAL 604800 SECOND
SETTINGS ttl_only_drop_parts = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS demand_of_batches TO demand AS
SELECT
    told.rule AS rule,
    told.tier AS tier,
    told.subject AS subject,
    told.at_us AS at_us,
    told.span_s AS span_s,
    told.asked AS asked,
    told.tokens AS tokens,
    told.refused AS refused,
    told.peak_1s AS peak_1s,
    told.peak_10s AS peak_10s,
    if(JSONHas(raw, 'sample_rate'), told.sample_rate, 1) AS sample_rate,
    node,
    batch,
    place
FROM
(
    SELECT
        JSONExtractString(body, 'node') AS node,
        sipHash64(JSONExtractString(body, 'id')) AS batch,
        JSONExtractArrayRaw(body, 'demand') AS raws,
        arrayJoin(arrayEnumerate(raws)) AS place,
        raws[place] AS raw,
        JSONExtract(raw, 'Tuple(rule String, tier String, subject String, at_us Int64, span_s Int64, asked UInt64, tokens UInt64, refused UInt64, peak_1s UInt64, peak_10s UInt64, sample_rate Float64)') AS told
    FROM (SELECT DISTINCT body FROM landing)
);

-- Everything that was asked of watched counters.
CREATE TABLE IF NOT EXISTS admissions
(
    rule LowCardinality(String),
    subject String CODEC(ZSTD(1)),
    algorithm LowCardinality(String),
    capacity UInt64 CODEC(T64, ZSTD(1)),
    tokens UInt64 CODEC(T64, ZSTD(1)),
    period_us UInt64 CODEC(T64, ZSTD(1)),
    window_us UInt64 CODEC(T64, ZSTD(1)),
    at_us Int64 CODEC(DoubleDelta, ZSTD(1)),
    cost UInt64 CODEC(T64, ZSTD(1)),
    allowed Bool,
    fits Bool,
    version Int64,
    shadow Bool,
    degraded Bool,
    level Int16,
    kind LowCardinality(String) DEFAULT 'ask',
    node LowCardinality(String),
    batch UInt64,
    place UInt32,
    landed DateTime('UTC') DEFAULT now('UTC') CODEC(DoubleDelta, ZSTD(1)),
    at DateTime64(6, 'UTC') ALIAS fromUnixTimestamp64Micro(at_us, 'UTC'),
    INDEX at_us_range at_us TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(landed)
ORDER BY (at_us, batch, place)
TTL landed + INTERVAL 3600 SECOND
SETTINGS ttl_only_drop_parts = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS admissions_of_batches TO admissions AS
SELECT
    told.rule AS rule,
    told.subject AS subject,
    told.algorithm AS algorithm,
    told.capacity AS capacity,
    told.tokens AS tokens,
    told.period_us AS period_us,
    told.window_us AS window_us,
    told.at_us AS at_us,
    told.cost AS cost,
    told.allowed AS allowed,
    if(JSONHas(raw, 'fits'), told.fits, true) AS fits,
    told.version AS version,
    told.shadow AS shadow,
    told.degraded AS degraded,
    told.level AS level,
    if(told.kind = '', 'ask', told.kind) AS kind,
    node,
    batch,
    place
FROM
(
    SELECT
        JSONExtractString(body, 'node') AS node,
        sipHash64(JSONExtractString(body, 'id')) AS batch,
        JSONExtractArrayRaw(body, 'admissions') AS raws,
        arrayJoin(arrayEnumerate(raws)) AS place,
        raws[place] AS raw,
        JSONExtract(raw, 'Tuple(rule String, subject String, algorithm String, capacity UInt64, tokens UInt64, period_us UInt64, window_us UInt64, at_us Int64, cost UInt64, allowed Bool, fits Bool, version Int64, shadow Bool, degraded Bool, level Int16, kind String)') AS told
    FROM (SELECT DISTINCT body FROM landing)
);

-- Messages that are no batches, from the Kafka engine's tables.
CREATE TABLE IF NOT EXISTS dead_letters
(
    landed DateTime('UTC') DEFAULT now('UTC'),
    topic LowCardinality(String),
    partition Int64,
    offset Int64,
    error String,
    raw String CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(landed)
ORDER BY (topic, partition, offset)
TTL landed + INTERVAL 604800 SECOND
SETTINGS ttl_only_drop_parts = 1;

-- How long what is kept, as it was last set.
CREATE TABLE IF NOT EXISTS retention
(
    name LowCardinality(String),
    kept_s UInt64,
    changed DateTime64(6, 'UTC') DEFAULT now64(6, 'UTC')
)
ENGINE = ReplacingMergeTree(changed)
ORDER BY name;
