from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.rules.quota import QuotaError, format_quota, parse_quota

S = 1_000_000
MINUTE = 60 * S
HOUR = 60 * MINUTE
DAY = 24 * HOUR

NOTATIONS = [
    ("100/minute", (TokenBucket(100, 100, MINUTE),)),
    ("10/second burst 50", (TokenBucket(50, 10, S),)),
    ("10/second burst 5", (TokenBucket(5, 10, S),)),
    ("1/second; 100/hour", (TokenBucket(1, 1, S), TokenBucket(100, 100, HOUR))),
    ("5/15m", (TokenBucket(5, 5, 15 * MINUTE),)),
    ("5/15 m", (TokenBucket(5, 5, 15 * MINUTE),)),
    ("5/15 minutes burst 7", (TokenBucket(7, 5, 15 * MINUTE),)),
    ("  7 / minute ", (TokenBucket(7, 7, MINUTE),)),
    ("unlimited", ()),
    ("0", (Ban(),)),
    (0, (Ban(),)),
    ("0/minute", (Ban(),)),
    ({"capacity": 100, "refill_per_sec": 10}, (TokenBucket(100, 10, S),)),
    ({"capacity": 100, "refill": "10/second"}, (TokenBucket(100, 10, S),)),
    ({"capacity": 3, "refill_per_sec": Decimal("0.1")}, (TokenBucket(3, 1, 10 * S),)),
    ({"capacity": 3, "refill_per_sec": 0.1}, (TokenBucket(3, 1, 10 * S),)),
    ({"capacity": 3, "refill_per_sec": Decimal("0.333")}, (TokenBucket(3, 333, 1000 * S),)),
    ({"capacity": 0}, (Ban(),)),
    ({"capacity": 0, "refill_per_sec": 5}, (Ban(),)),
]


@pytest.mark.parametrize("text, specs", NOTATIONS, ids=[str(row[0]) for row in NOTATIONS])
def test_every_notation_means_what_it_says(text, specs):
    """Each documented notation gives exactly these specs."""
    assert parse_quota(text).specs == specs


UNITS = {
    "ms millisecond milliseconds": 1_000,
    "s sec secs second seconds": S,
    "m min mins minute minutes": MINUTE,
    "h hour hours": HOUR,
    "d day days": DAY,
    "w week weeks": 7 * DAY,
    "month months": 30 * DAY,
    "year years": 365 * DAY,
}


@pytest.mark.parametrize("names, length_us", UNITS.items())
def test_every_unit_has_its_length(names, length_us):
    """All spellings of a unit mean the same time; a month is 30 days and a year 365."""
    for name in names.split():
        assert parse_quota(f"3/{name}", algorithm="fixed_window").specs == (FixedWindow(3, length_us),)
        assert parse_quota(f"3/2{name}", algorithm="fixed_window").specs == (FixedWindow(3, 2 * length_us),)


ALGORITHMS = [
    ("5/minute", {"algorithm": "fixed_window"}, FixedWindow(5, MINUTE)),
    ("5/minute", {"algorithm": "sliding_window"}, SlidingWindow(5, MINUTE)),
    ("5/minute", {"algorithm": "sliding_window", "strict": False}, SlidingWindow(5, MINUTE)),
    ("5/minute", {"algorithm": "sliding_window", "strict": True}, SlidingWindow(5, MINUTE, 6)),
    ("5/minute", {"algorithm": "sliding_window", "strict": 12}, SlidingWindow(5, MINUTE, 12)),
    ("5/minute", {"algorithm": "sliding_log"}, SlidingLog(5, MINUTE)),
    ({"limit": 5, "window_s": 60}, {"algorithm": "sliding_log"}, SlidingLog(5, MINUTE)),
    ({"limit": 5, "window_s": Decimal("0.25")}, {"algorithm": "fixed_window"}, FixedWindow(5, S // 4)),
    ({"limit": 0, "window_s": 60}, {"algorithm": "fixed_window"}, Ban()),
    ("5/second", {"algorithm": "leaky_bucket"}, LeakyBucket(5, 5, S)),
    (
        "5/second burst 9",
        {"algorithm": "leaky_bucket", "max_delay_ms": 250, "nodelay": True},
        LeakyBucket(9, 5, S, 250_000, nodelay=True),
    ),
    (
        "1000/month",
        {"algorithm": "fixed_window", "align": "calendar", "tz": "Europe/Berlin"},
        FixedWindow(1000, 30 * DAY, "calendar", "Europe/Berlin", "month"),
    ),
    ("9/1 day", {"algorithm": "fixed_window", "align": "calendar"}, FixedWindow(9, DAY, "calendar", "UTC", "day")),
]


@pytest.mark.parametrize("text, options, spec", ALGORITHMS)
def test_every_algorithm_takes_its_quota_and_options(text, options, spec):
    """The same notation serves every algorithm, with the options that belong to it."""
    assert parse_quota(text, **options).specs == (spec,)


ERRORS = [
    # text, options, message, the part it names
    ("", {}, "empty quota: write COUNT/PERIOD, such as 100/minute", ""),
    ("100", {}, "'100' is not a limit: write COUNT/PERIOD, such as 100/minute", "100"),
    (5, {}, "5 has no period: write COUNT/PERIOD, such as 100/minute", "5"),
    (True, {}, "True is not a quota: write COUNT/PERIOD, such as 100/minute", "True"),
    (None, {}, "None is not a quota: write COUNT/PERIOD, such as 100/minute", "None"),
    ("100/", {}, "'100/' has no period: write COUNT/PERIOD, such as 100/minute", "100/"),
    ("/minute", {}, "bad count '': digits only", ""),
    ("-5/minute", {}, "bad count '-5': digits only", "-5"),
    ("1.5/minute", {}, "bad count '1.5': digits only", "1.5"),
    ("1_000/s", {}, "bad count '1_000': digits only (did you mean '1000'?)", "1_000"),
    ("٣/minute", {}, "bad count '٣': digits only", "٣"),
    ("9999999999999999/s", {}, "count '9999999999999999' is too large", "9999999999999999"),
    ("100/minuet", {}, "unknown unit 'minuet' (did you mean 'minute'?)", "minuet"),
    ("100/Minute", {}, "unknown unit 'Minute' (did you mean 'minute'?)", "Minute"),
    ("100/15", {}, "'15' is not a span of time such as 15m (did you mean '15s'?)", "15"),
    ("100/0m", {}, "'0m' is an empty span of time", "0m"),
    ("100/minute; ", {}, "empty limit beside ';'", ";"),
    ("100/minute burst", {}, "'burst' needs exactly one number after it", "burst"),
    ("100/minute burst 5 6", {}, "'burst' needs exactly one number after it", "burst 5 6"),
    ("100/minute burst x", {}, "bad burst 'x': digits only", "x"),
    ("100/minute burst 0", {}, "burst 0 would refuse everything; a ban is written 0 (did you mean '0'?)", "0"),
    ("100/minute burts 5", {}, "unexpected 'burts' (did you mean 'burst'?)", "burts"),
    ("100/15 m extra", {}, "unexpected 'extra'", "extra"),
    ("0/minute burst 5", {}, "a rate of 0 with a burst never refills; a ban is written 0", "0/minute burst 5"),
    (
        "unlimted",
        {},
        "'unlimted' is not a limit: write COUNT/PERIOD, such as 100/minute (did you mean 'unlimited'?)",
        "unlimted",
    ),
    (
        "100 per minute",
        {},
        "'100 per minute' is not a limit: write COUNT/PERIOD, such as 100/minute (did you mean '100/minute'?)",
        "100 per minute",
    ),
    ("5/s; 5/second", {}, "the limit '5/second' is there twice", "5/second"),
    ("0/s; 5/m", {}, "a ban (0) cannot be combined with other limits: nothing would pass anyway", "0/s; 5/m"),
    ("1/s;" * 8 + "1/m", {}, "a quota has at most 8 limits, this one 9", "1/s;" * 8 + "1/m"),
    (
        "5/minute burst 7",
        {"algorithm": "fixed_window"},
        "burst belongs to buckets; a fixed_window admits its limit at once anyway",
        "burst 7",
    ),
    (
        "20000/minute",
        {"algorithm": "sliding_log"},
        "'20000/minute': limit: a sliding log holds at most 10000 tokens, got 20000; a strict sliding_window needs a few integers for any limit",
        "20000/minute",
    ),
    (
        "5/hour",
        {"algorithm": "fixed_window", "align": "calendar"},
        "'5/hour' has no calendar window: align: calendar takes one day, week, month or year",
        "5/hour",
    ),
    (
        "5/s",
        {"algorithm": "tokn_bucket"},
        "algorithm: unknown algorithm 'tokn_bucket' (did you mean 'token_bucket'?)",
        "tokn_bucket",
    ),
    ("5/s", {"strict": True}, "strict: belongs to sliding_window and does nothing for token_bucket", "strict"),
    ("5/s", {"nodelay": True}, "nodelay: belongs to leaky_bucket and does nothing for token_bucket", "nodelay"),
    (
        "5/s",
        {"max_delay_ms": 5},
        "max_delay_ms: belongs to leaky_bucket and does nothing for token_bucket",
        "max_delay_ms",
    ),
    ("5/s", {"align": "calendar"}, "align: belongs to fixed_window and does nothing for token_bucket", "align"),
    (
        "5/day",
        {"algorithm": "fixed_window", "tz": "Europe/Berlin"},
        "tz: needs align: calendar; windows from the epoch have no time zone",
        "Europe/Berlin",
    ),
    ("5/s", {"algorithm": "sliding_window", "strict": 61}, "strict: 61 is out of range: 1 to 60 sub-windows", "61"),
    ("5/s", {"algorithm": "sliding_window", "strict": 0}, "strict: 0 is out of range: 1 to 60 sub-windows", "0"),
    ("999999999999999/s", {}, "'999999999999999/s' has more than 1000000000000 tokens", "999999999999999/s"),
    ("1/year burst 100", {}, "'1/year burst 100' takes 100 years to fill; at most 71 are allowed", "1/year burst 100"),
    ("5/11 years", {"algorithm": "fixed_window"}, "'5/11 years' has a window above 10 years", "5/11 years"),
    ({"capacity": 5}, {}, "refill_per_sec: missing: how many tokens come back a second", ""),
    ({"refill_per_sec": 5}, {}, "capacity: missing", ""),
    (
        {"capacity": 5, "refill_per_sec": 0},
        {},
        "refill_per_sec: a refill of 0 never gives a token back; a ban is written 0",
        "0",
    ),
    ({"capacity": 5, "refill_per_sec": -1}, {}, "refill_per_sec: -1 is below 0", "-1"),
    ({"capacity": 5, "refill_per_sec": "1"}, {}, "refill_per_sec: '1' is not a number", "'1'"),
    ({"capacity": 5, "refill_per_sec": True}, {}, "refill_per_sec: True is not a number", "True"),
    ({"capacity": 5, "refill_per_sec": float("nan")}, {}, "refill_per_sec: NaN is out of range", "NaN"),
    ({"capacity": 5, "refill_per_sec": 1e300}, {}, "refill_per_sec: 1E+300 is out of range", "1E+300"),
    ({"capacity": 1.5, "refill_per_sec": 1}, {}, "capacity: 1.5 is not a whole number >= 0", "1.5"),
    ({"capacity": -1, "refill_per_sec": 1}, {}, "capacity: -1 is not a whole number >= 0", "-1"),
    (
        {"capacity": 5, "refill": "1/s", "refill_per_sec": 1},
        {},
        "refill: refill and refill_per_sec say the same thing; keep one",
        "refill",
    ),
    ({"capacity": 5, "refill": "1/s burst 4"}, {}, "refill: capacity says the burst already", "burst 4"),
    ({"capacity": 5, "refill": "1/sx"}, {}, "refill: unknown unit 'sx' (did you mean 's'?)", "sx"),
    ({"capacty": 5, "refill": "1/s"}, {}, "capacty: unknown field (did you mean 'capacity'?)", "capacty"),
    (
        {"limit": 5, "window_s": 60},
        {},
        "limit: does not belong to token_bucket, which takes capacity, refill, refill_per_sec",
        "limit",
    ),
    ({"limit": 5}, {"algorithm": "fixed_window"}, "window_s: missing: the window in seconds", ""),
    (
        {"limit": 5, "window_s": Decimal("0.0001")},
        {"algorithm": "fixed_window"},
        "window_s: 0.0001 is not a window of whole milliseconds > 0",
        "0.0001",
    ),
]


@pytest.mark.parametrize("text, options, message, part", ERRORS, ids=[f"{row[0]}-{row[1]}"[:60] for row in ERRORS])
def test_an_error_names_the_part_that_is_bad(text, options, message, part):
    """The message and ``part`` say exactly which token cannot be read and what was probably meant."""
    with pytest.raises(QuotaError) as caught:
        parse_quota(text, **options)
    assert (str(caught.value), caught.value.part) == (message, part)


def test_zero_and_unlimited_are_opposites():
    """P17: 0 admits nothing, unlimited everything, and neither is mistaken for the other."""
    assert parse_quota("0").specs[0].admit(None, 10**15, 1) is None
    assert parse_quota("unlimited").unlimited
    assert not parse_quota("0").unlimited


def test_fast_rates_are_exact():
    """T62: 2,000 and 8,000 a second are ordinary rates."""
    for rate in (2_000, 8_000, 700_000, 100_000_000):
        assert parse_quota(f"{rate}/s").specs == (TokenBucket(rate, rate, S),)


def test_an_over_long_text_and_number_fail_fast():
    """Neither a megabyte of text nor a number of 10,000 digits takes time or another error."""
    for hostile in ("9" * 10**6, "1/s;" * 10**5, {"capacity": 10**9_999, "refill_per_sec": 1}, 10**9_999):
        with pytest.raises(QuotaError) as caught:
            parse_quota(hostile)
        assert len(str(caught.value)) < 300


def outcome(value, algorithm):
    """The quota, or None and the message of the QuotaError; any other error fails the test."""
    try:
        return parse_quota(value, algorithm=algorithm), ""
    except QuotaError as error:
        return None, str(error)


ANY_ALGORITHM = st.sampled_from(["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"])
WORDS = st.sampled_from(
    ["1", "0", "50", "/", ";", " ", "second", "m", "15m", "burst", "unlimited", "-", ".5", "\t", "\n"]
)


@given(st.one_of(st.text(max_size=40), st.lists(WORDS, max_size=12).map("".join)), ANY_ALGORITHM)
def test_no_text_raises_anything_but_a_quota_error(text, algorithm):
    """Whatever the text, the answer is a quota or a QuotaError that fits on a line."""
    quota, error = outcome(text, algorithm)
    assert quota is None or all(spec.capacity >= 0 for spec in quota.specs)
    assert error.isprintable()
    assert len(error) < 400


FIELDS = st.sampled_from(["capacity", "refill", "refill_per_sec", "limit", "window_s", "other"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.decimals(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(FIELDS, inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(FIELDS, JSON, max_size=3) | JSON, ANY_ALGORITHM)
def test_no_value_raises_anything_but_a_quota_error(value, algorithm):
    """Whatever JSON or YAML can hold, the answer is a quota or a QuotaError."""
    quota, error = outcome(value, algorithm)
    assert quota is None or len(quota.specs) <= 8
    assert error.isprintable()
    assert len(error) < 400


COUNTS = st.integers(1, 10**6)
PERIODS_US = st.integers(1, 10**6).map(lambda ms: ms * 1_000) | st.sampled_from([MINUTE, HOUR, DAY, 30 * DAY])


BUCKETS = st.tuples(st.integers(1, 1_000), COUNTS, PERIODS_US)


@given(st.lists(BUCKETS, min_size=1, max_size=3, unique=True))
def test_a_formatted_bucket_reads_back_the_same(numbers):
    """Format, then parse: the same token buckets, whatever their numbers."""
    specs = tuple(dict.fromkeys(TokenBucket(capacity, tokens, period) for capacity, tokens, period in numbers))
    assert parse_quota(format_quota(specs)).specs == specs


@given(COUNTS, PERIODS_US, st.sampled_from([(FixedWindow, "fixed_window"), (SlidingWindow, "sliding_window")]))
def test_a_formatted_window_reads_back_the_same(limit, window_us, kind):
    """Format, then parse: the same window of whole milliseconds."""
    spec = kind[0](limit, window_us)
    assert parse_quota(format_quota([spec]), algorithm=kind[1]).specs == (spec,)


FORMATS = [
    ("100/minute", "100/minute"),
    ("60/m", "60/minute"),
    ("10/second burst 50", "10/second burst 50"),
    ("7/90s", "7/90s"),
    ({"capacity": 100, "refill_per_sec": 10}, "10/second burst 100"),
    ({"capacity": 3, "refill_per_sec": Decimal("0.1")}, "6/minute burst 3"),
    ("unlimited", "unlimited"),
    ("0/hour", "0"),
    ("1/second; 100/hour", "1/second; 100/hour"),
]


@pytest.mark.parametrize("text, formatted", FORMATS)
def test_format_prefers_the_words_people_use(text, formatted):
    """A quota is written with the unit in which its numbers are whole."""
    assert format_quota(parse_quota(text).specs) == formatted


def test_the_text_is_what_the_user_wrote():
    """``Quota.text`` keeps the user's spelling; numbers get the text that means the same."""
    assert parse_quota(" 5/15m ").text == "5/15m"
    assert parse_quota({"capacity": 50, "refill_per_sec": 10}).text == "10/second burst 50"
