"""Bad files, and exactly what the operator reads of each."""

from __future__ import annotations

import pytest

from sluicegate.rules.problems import Problem

HEAD = "version: 1\ntiers: {default: free, names: [free, paid]}\nrules:\n"

FILES = [
    ("{}", ["the file must say version: 1", "the file has no rules: it would limit nothing"]),
    ("5", ["1: expected a mapping with version, identity, subjects, tiers, rules, got the number 5"]),
    ("version: 1\nrules: []", ["2: rules: is empty: the file would limit nothing"]),
    ("version: 1\nrules:", ["2: rules: has no value; give one or remove the field"]),
    ("version: 1\nrules: {a: 1}", ["2: rules: expected a list of rules, got a mapping"]),
    ("version: 2\nrules: [{name: a, quota: 5/s}]", ["1: version: the only format version is 1, got the number 2"]),
    ("version: '1'\nrules: [{name: a, quota: 5/s}]", ["1: version: the only format version is 1, got the text '1'"]),
    ("version: 1\nrulse: []\nrules: [{name: a, quota: 5/s}]", ["2: rulse: unknown field (did you mean 'rules'?)"]),
    (
        "version: 1\ntiers: {names: [free, 'a b', limit], default: fre}\nrules: [{name: a, quota: 5/s}]",
        [
            "2: tiers.names: 'a b' is not a name: 1 to 64 of A-Z a-z 0-9 _ . -, the first a letter or digit (did you mean 'a-b'?)",
            "2: tiers.names: 'limit' is a field of a quota; a tier of that name would be confused with it",
            "2: tiers.default: 'fre' is not among the names (did you mean 'free'?)",
        ],
    ),
    (
        "version: 1\ntiers: {nmes: [free]}\nrules: [{name: a, quota: 5/s}]",
        [
            "2: tiers.nmes: unknown field (did you mean 'names'?)",
            "2: tiers.names: missing: the list of all tiers",
            "2: tiers.default: missing: the tier of requests that have none, or an unknown one",
        ],
    ),
    (
        HEAD.replace("rules:", "subjects: {'api_key:k': gold, 'apikey:x': free, 'user:': free, 'user:a': [1]}\nrules:")
        + "- {name: a, quota: 5/s}",
        [
            "3: subjects.api_key:k: unknown tier 'gold'; known are free, paid",
            "3: subjects.apikey:x: a subject is written api_key:NAME, user:NAME or tenant:NAME (did you mean 'api_key:x'?)",
            "3: subjects.user:: a subject is written api_key:NAME, user:NAME or tenant:NAME",
            "3: subjects.user:a: expected text, got a list",
        ],
    ),
    (
        "version: 1\nidentity:\n  trusted_peers:\n    - 10.0.0.0/8\n    - 10.0.0.1/8\n  usr: {header: X}\nrules: [{name: a, quota: 5/s}]",
        [
            "5: identity.trusted_peers[1]: '10.0.0.1/8' has host bits set; the network is '10.0.0.0/8' (did you mean '10.0.0.0/8'?)",
            "6: identity.usr: unknown field 'usr' (did you mean 'user'?)",
        ],
    ),
    ("version: 1\nrules:\n- 5\n- [a]", [
        "3: rule '#1': expected a mapping such as {name: api, quota: 100/minute}, got the number 5",
        "4: rule '#2': expected a mapping such as {name: api, quota: 100/minute}, got a list",
    ]),
]  # fmt: skip


@pytest.mark.parametrize("text, lines", FILES, ids=[row[0][:24] for row in FILES])
def test_a_bad_file_reads_so(text, lines, lines_of):
    """Problems of the file as a whole: line, field, what is wrong, what was probably meant."""
    assert [line.strip() for line in lines_of(text)] == lines


RULES = [
    # fields of a rule named `a` on line 4, one field a line from line 5 on, and what is said of it
    ("", ["4: rule 'a': quota: missing; write for instance quota: 100/minute, or quota: unlimited"]),
    ("quota:", ["5: rule 'a': quota: has no value; give one or remove the field"]),
    ("quota: 5/minuet", ["5: rule 'a': quota: unknown unit 'minuet' (did you mean 'minute'?)"]),
    ("quota: 5", ["5: rule 'a': quota: 5 has no period: write COUNT/PERIOD, such as 100/minute"]),
    ("quota: [5/s]", ["5: rule 'a': quota: ['5/s'] is not a quota: write COUNT/PERIOD, such as 100/minute"]),
    ("quota: {}", ["5: rule 'a': quota: is empty; write for instance 100/minute, or {free: 100/minute, paid: 1000/minute}"]),
    ("quota: {paid: 5/s}", [
        "5: rule 'a': quota: has no quota for 'free', the default tier; write free: unlimited if that is meant"]),
    ("quota: {free: 5/s, pied: 5/s, paid: 5/sx}", [
        "5: rule 'a': quota.pied: unknown tier; known are free, paid (did you mean 'paid'?)",
        "5: rule 'a': quota.paid: unknown unit 'sx' (did you mean 's'?)"]),
    ("quota: {free: 5/s, paid: }", ["5: rule 'a': quota.paid: has no value; write for instance 100/minute, or unlimited"]),
    ("quota:\n      capacity: 5\n      refil_per_sec: 1", [
        "7: rule 'a': quota.refil_per_sec: unknown field (did you mean 'refill_per_sec'?)"]),
    ("quota: {capacity: 5, refill_per_sec: 1e-30}", ["5: rule 'a': quota.refill_per_sec: 1E-30 is out of range"]),
    ("quota: {limit: 5, window_s: 60}", [
        "5: rule 'a': quota.limit: does not belong to token_bucket, which takes capacity, refill, refill_per_sec"]),
    ("quota: 5/s burst 9\n    algorithm: fixed_window", [
        "5: rule 'a': quota: burst belongs to buckets; a fixed_window admits its limit at once anyway"]),
    ("quota: 5/s\n    algorithm: fixed-window", [
        "6: rule 'a': algorithm: 'fixed-window' is not one of token_bucket, leaky_bucket, fixed_window, sliding_window, sliding_log (did you mean 'fixed_window'?)"]),
    ("quota: 20000/minute\n    algorithm: sliding_log", [
        "5: rule 'a': quota: '20000/minute': limit: a sliding log holds at most 10000 tokens, got 20000; a strict sliding_window needs a few integers for any limit"]),
    # T113: what would be read and then ignored is an error.
    ("quota: 5/s\n    strict: true", ["6: rule 'a': strict: belongs to sliding_window and does nothing for token_bucket"]),
    ("quota: 5/s\n    nodelay: true\n    max_delay_ms: 5", [
        "6: rule 'a': nodelay: belongs to leaky_bucket and does nothing for token_bucket",
        "7: rule 'a': max_delay_ms: belongs to leaky_bucket and does nothing for token_bucket"]),
    ("quota: 5/s\n    align: calendar\n    tz: UTC", [
        "6: rule 'a': align: belongs to fixed_window and does nothing for token_bucket",
        "7: rule 'a': tz: belongs to fixed_window and does nothing for token_bucket"]),
    ("quota: 5/day\n    algorithm: fixed_window\n    tz: Europe/Berlin", [
        "7: rule 'a': tz: needs align: calendar; windows from the epoch have no time zone"]),
    ("quota: 5/s\n    on_missing: deny", [
        "6: rule 'a': on_missing: does nothing without per: there is no dimension to be missing"]),
    ("quota: 5/s\n    per: [ip, user]\n    on_missing: ip", [
        "7: rule 'a': on_missing: ip is one of the dimensions already, so there is nothing to fall back on"]),
    ("quota: 5/s\n    fallback_start: full\n    on_store_failure: open", [
        "6: rule 'a': fallback_start: belongs to on_store_failure: local and does nothing for open"]),
    ("quota: 5/day\n    algorithm: fixed_window\n    align: calender\n    tz: Europe/Berln", [
        "7: rule 'a': align: 'calender' is not one of epoch, calendar (did you mean 'calendar'?)",
        "8: rule 'a': tz: needs align: calendar; windows from the epoch have no time zone"]),
    ("quota: 5/day\n    algorithm: fixed_window\n    align: calendar\n    tz: Europe/Berln", [
        "8: rule 'a': tz: unknown time zone 'Europe/Berln' (did you mean 'Europe/Berlin'?)"]),
    ("quota: 5/s\n    algorithm: sliding_window\n    strict: 0", [
        "7: rule 'a': strict: expected true, false or 1 to 60 sub-windows, got the number 0"]),
    ("quota: 5/s\n    algorithm: leaky_bucket\n    max_delay_ms: 1_000", [
        "7: rule 'a': max_delay_ms: expected a whole number, got the text '1_000' (did you mean '1000'?)"]),
    ("quota: 5/s\n    algorithm: leaky_bucket\n    max_delay_ms: -1", [
        "7: rule 'a': max_delay_ms: -1 is out of range: 0 to 3600000"]),
    ("quota: 5/s; 100/hour\n    algorithm: leaky_bucket\n    max_delay_ms: 3600000", [
        "4: rule 'a': quota: a leaky_bucket takes one limit: a request can be held only once"]),
    ("quota: 5/s\n    algorithm: leaky_bucket\n    precision: leased", [
        "7: rule 'a': precision: a leaky_bucket is never leased: its requests leave one after the other"]),
    ("quota: 5/s\n    algorithm: leaky_bucket\n    precision: split", [
        "7: rule 'a': precision: a leaky_bucket is never split: its requests leave one after the other"]),
    ("quota: 5/s\n    precision: estimated\n    denied_counts: true", [
        "6: rule 'a': precision: a rule with denied_counts is never estimated: each of its refusals has to be charged in the store"]),
    ("quota: 5/s\n    precision: least", [
        "6: rule 'a': precision: 'least' is not one of exact, auto, leased, split, estimated (did you mean 'leased'?)"]),
    # wrong words and types
    ("quota: 5/s\n    mode: shadwo", ["6: rule 'a': mode: 'shadwo' is not one of enforce, shadow, off (did you mean 'shadow'?)"]),
    ("quota: 5/s\n    mode: true", ["6: rule 'a': mode: the boolean true is not one of enforce, shadow, off"]),
    ("quota: 5/s\n    on_store_failure: close", [
        "6: rule 'a': on_store_failure: 'close' is not one of local, open, closed (did you mean 'closed'?)"]),
    ("quota: 5/s\n    denied_counts: 1", ["6: rule 'a': denied_counts: expected true or false, got the number 1"]),
    ("quota: 5/s\n    denied_counts: 'yes'", ["6: rule 'a': denied_counts: expected true or false, got the text 'yes'"]),
    ("quota: 5/s\n    on_change: kep", ["6: rule 'a': on_change: 'kep' is not one of keep, scale, reset (did you mean 'keep'?)"]),
    ("quota: 5/s\n    respond: 503", ["6: rule 'a': respond: expected 429, challenge or {template: TEXT}, got the number 503"]),
    ("quota: 5/s\n    respond: {templat: x}", [
        "6: rule 'a': respond.templat: unknown field (did you mean 'template'?)",
        "6: rule 'a': respond.template: missing: the body of the answer"]),
    ("quota: 5/s\n    respond: {template: x, content_type: texte/été}", [
        "6: rule 'a': respond.content_type: 'texte/été' is not a media type such as text/html"]),
    ("quota: 5/s\n    qouta: 6/s", ["6: rule 'a': qouta: unknown field (did you mean 'quota'?)"]),
    ("quota: 5/s\n    zzz: 6/s", ["6: rule 'a': zzz: unknown field"]),
    # scope against per
    ("quota: 5/s\n    scope: global\n    per: [ip]", [
        "6: rule 'a': scope: global means one counter for everybody, but per keeps one for each ip"]),
    ("quota: 5/s\n    scope: identity", [
        "6: rule 'a': scope: identity means one counter for each client, but per names nothing that tells clients apart"]),
    ("quota: 5/s\n    scope: identity\n    per: [tier]", [
        "6: rule 'a': scope: identity means one counter for each client, but per names nothing that tells clients apart"]),
    # per
    ("quota: 5/s\n    per: [usr]", ["6: rule 'a': per: unknown dimension 'usr' (did you mean 'user'?)"]),
    ("quota: 5/s\n    per: [route]", ["6: rule 'a': per: unknown dimension 'route' (did you mean 'endpoint'?)"]),
    ("quota: 5/s\n    per: [zzz]", [
        "6: rule 'a': per: unknown dimension 'zzz'; there are ip, user, api_key, tenant, tier, host, method, endpoint, path, domain, header.NAME, descriptor.KEY, attrs.NAME"]),
    ("quota: 5/s\n    per: [headers.X-A]", ["6: rule 'a': per: unknown dimension 'headers.X-A' (did you mean 'header.X-A'?)"]),
    ("quota: 5/s\n    per: [header., 'header.a b']", [
        "6: rule 'a': per: 'header.' names no header", "6: rule 'a': per: 'header.a b' names no header"]),
    ("quota: 5/s\n    per: [ip, ip]", ["6: rule 'a': per: 'ip' is here twice"]),
    ("quota: 5/s\n    per: []", ["6: rule 'a': per: is an empty list; leave the field out instead"]),
    ("quota: 5/s\n    per: {fist_of: [ip]}", [
        "6: rule 'a': per.fist_of: unknown field (did you mean 'first_of'?)",
        "6: rule 'a': per: expected a list of dimensions, or {first_of: [...]}"]),
    ("quota: 5/s\n    per: {first_of: [user], on_missing: skip}\n    on_missing: deny", [
        "6: rule 'a': per.on_missing: is given twice: here and beside per"]),
    ("quota: 5/s\n    per: [attrs.a, attrs.b, attrs.c, attrs.d, attrs.e, attrs.f, attrs.g, attrs.h, attrs.i]", [
        "6: rule 'a': per: has 9 dimensions; at most 8 are allowed"]),
    # match
    ("quota: 5/s\n    match: {}", [
        "6: rule 'a': match: is empty; leave it out, or write for instance {methods: [POST], path: /login}"]),
    ("quota: 5/s\n    match: /login", [
        "6: rule 'a': match: expected a mapping such as {methods: [POST], path: /login}, got the text '/login'"]),
    ("quota: 5/s\n    match: {method: GET}", ["6: rule 'a': match.method: unknown field (did you mean 'methods'?)"]),
    ("quota: 5/s\n    match: {path: login}", [
        "6: rule 'a': match.path: a path pattern begins with '/', got 'login'; did you mean '/login'?"]),
    ("quota: 5/s\n    match:\n      path:\n        - /ok\n        - /a/:id\n        - 5", [
        "9: rule 'a': match.path: ':id' in '/a/:id' is not a wildcard here; write '{id}'",
        "10: rule 'a': match.path: a path pattern begins with '/', got '5'; did you mean '/5'?"]),
    ("quota: 5/s\n    match: {host: ['api.example.com:443', 'https://x.org/a', 'a b', 'x.org.', '::1']}", [
        "6: rule 'a': match.host: 'api.example.com:443' has a port; hosts are compared without it (did you mean 'api.example.com'?)",
        "6: rule 'a': match.host: 'https://x.org/a' is a URL (did you mean 'x.org'?)",
        "6: rule 'a': match.host: 'a b' is not a host such as api.example.com or *.example.com",
        "6: rule 'a': match.host: 'x.org.' ends in a dot; hosts are compared without it (did you mean 'x.org'?)",
        "6: rule 'a': match.host: '::1' needs brackets, as in a Host header (did you mean '[::1]'?)"]),
    ("quota: 5/s\n    match: {ip: [10.0.0.1/8, office]}", [
        "6: rule 'a': match.ip: '10.0.0.1/8' has bits set beyond its prefix (did you mean '10.0.0.0/8'?)",
        "6: rule 'a': match.ip: 'office' is not an address or a network such as 10.0.0.0/8"]),
    ("quota: 5/s\n    match: {tier: [gold]}", ["6: rule 'a': match.tier: unknown tier 'gold'; known are free, paid"]),
    ("quota: 5/s\n    match: {methods: ['a b']}", ["6: rule 'a': match.methods: 'a b' is not a method"]),
    ("quota: 5/s\n    match: {headers: {'X A': 1, X-B: true, x-c: '1', X-C: '2'}}", [
        "6: rule 'a': match.headers.X A: 'X A' is not a header name",
        "6: rule 'a': match.headers.X-B: put the text true in quotes, or give no value to ask for mere presence",
        "6: rule 'a': match.headers.X-C: is here twice; letter case does not tell headers apart"]),
    ("quota: 5/s\n    match: {descriptors: [a]}", [
        "6: rule 'a': match.descriptors: expected a mapping such as {remote_address: 203.0.113.9}, got a list"]),
    ("quota: 5/s\n    match: {authenticated: perhaps}", [
        "6: rule 'a': match.authenticated: expected true or false, got the text 'perhaps'"]),
    ("quota: 5/s\n    match: {not: {not: {path: /a}}}", [
        "6: rule 'a': match.not.not: a not inside a not says the same as neither; write the condition itself"]),
    ("quota: 5/s\n    match: {not: {paht: /a}}", ["6: rule 'a': match.not.paht: unknown field (did you mean 'path'?)"]),
    ("quota: 5/s\n    match: {user: ['']}", ["6: rule 'a': match.user: is an empty text"]),
    ("quota: 5/s\n    match: {user: [true]}", ["6: rule 'a': match.user: expected text, got the boolean true; put it in quotes"]),
    ("quota: 5/s\n    match: {user: [\"a\\tb\"]}", ["6: rule 'a': match.user: 'a\\tb' holds a character that cannot be printed"]),
    # cost
    ("quota: 5/s\n    cost: 0", ["6: rule 'a': cost: 0 is out of range: 1 to 1000000000000"]),
    ("quota: 5/s\n    cost: 1.5", ["6: rule 'a': cost: expected a whole number, got the number 1.5"]),
    ("quota: 5/s\n    cost: '5'", ["6: rule 'a': cost: expected a whole number, got the text '5' (did you mean '5'?)"]),
    ("quota: 5/s\n    cost: 6", ["6: rule 'a': cost: 6 is above the capacity (5), so nothing would ever pass"]),
    ("quota: {free: 5/s, paid: 9/s}\n    cost: 6", [
        "6: rule 'a': cost: 6 is above the capacity of tier 'free' (5), so nothing would ever pass"]),
    ("quota: 5/s\n    cost: {max: 5}", ["6: rule 'a': cost.header: missing: the header to read the cost from"]),
    ("quota: 5/s\n    cost: {header: X-Cost}", [
        "6: rule 'a': cost.max: missing: the most one request may cost, which is also what a malformed header costs"]),
    ("quota: 5/s\n    cost: {header: X-Cost, min: 4, max: 3}", ["6: rule 'a': cost.min: 4 is above max (3)"]),
    ("quota: 5/s\n    cost: {header: X-Cost, min: 2, max: 3, default: 1}", [
        "6: rule 'a': cost.default: 1 is not within min and max (2 to 3)"]),
    ("quota: 5/s\n    cost: {header: 'X Cost', max: 3}", ["6: rule 'a': cost.header: 'X Cost' is not a header name"]),
    # penalty
    ("quota: 5/s\n    penalty: {after: 20/1m, block: 15x}", [
        "6: rule 'a': penalty.after: '20/1m' is not written like '20 refusals/1m'",
        "6: rule 'a': penalty.block: unknown unit 'x'"]),
    ("quota: 5/s\n    penalty: {after: 0 refusals/1m, block: 15m}", [
        "6: rule 'a': penalty.after: 0 refusals would block everybody"]),
    ("quota: 5/s\n    penalty: {after: 5 refusals/1m, block: 2 months}", [
        "6: rule 'a': penalty.block: is longer than 30 days; that is for a block list"]),
    ("quota: 5/s\n    penalty: {aftr: 5 refusals/1m, block: 1m}", [
        "6: rule 'a': penalty.aftr: unknown field (did you mean 'after'?)",
        "6: rule 'a': penalty.after: missing; a penalty is written {after: 20 refusals/1m, block: 15m}"]),
]  # fmt: skip


@pytest.mark.parametrize("fields, lines", RULES, ids=[row[0].replace("\n    ", " ")[:48] for row in RULES])
def test_a_bad_rule_reads_so(fields, lines, lines_of):
    """Problems of one rule: line, rule, field, what is wrong, what was probably meant."""
    found = lines_of(f"{HEAD}  - name: a\n    {fields}\n")
    assert [line for line in found if "warning: " not in line] == lines


NAMES = [
    ("'a b'", "'a b'", "a-b"),
    ("_a", "'_a'", "a"),
    ("a#1", "'a#1'", "a-1"),
    ("é", "'é'", None),
    ("x" * 65, f"'{'x' * 63}…", "x" * 64),
    ("'a\\n'", "'a\\\\n'", "a-n"),
]


@pytest.mark.parametrize("name, shown, meant", NAMES)
def test_a_name_is_safe_everywhere(name, shown, meant, lines_of):
    """A name that could not stand in a header, a key or a metric is refused, with one that could."""
    hint = f" (did you mean {meant!r}?)" if meant else ""
    (line,) = lines_of(f"version: 1\nrules:\n  - name: {name}\n    quota: 5/s\n")
    assert line.endswith(
        f"name: {shown} is not a name: 1 to 64 of A-Z a-z 0-9 _ . -, the first a letter or digit{hint}"
    )


def test_a_rule_without_a_name_is_known_by_its_place(lines_of):
    """Where there is no name to show, the rule's place in the list stands for it."""
    text = "version: 1\nrules:\n  - {name: a, quota: 5/s}\n  - {quota: 5/s, per: [usr]}\n  - {name: 5, quota: 5/s}\n"
    assert lines_of(text) == [
        "4: rule '#2': has no name",
        "4: rule '#2': per: unknown dimension 'usr' (did you mean 'user'?)",
        "5: rule '#3': name: expected text, got the number 5; put it in quotes",
    ]


def test_all_problems_are_listed_in_order_of_lines(lines_of):
    """One run shows every problem of a file, whatever stands before it."""
    text = """\
version: 1
rules:
  - name: one
    quota: 5/minuet
    mode: of
  - name: two
    match: {path: nope, host: "a b"}
    per: [usr]
    quota: 5/s
    strict: true
  - name: one
    quota: {free: 5/s}
extra: 1
"""
    assert lines_of(text) == [
        "4: rule 'one': quota: unknown unit 'minuet' (did you mean 'minute'?)",
        "5: rule 'one': mode: 'of' is not one of enforce, shadow, off (did you mean 'off'?)",
        "7: rule 'two': match.path: a path pattern begins with '/', got 'nope'; did you mean '/nope'?",
        "7: rule 'two': match.host: 'a b' is not a host such as api.example.com or *.example.com",
        "8: rule 'two': per: unknown dimension 'usr' (did you mean 'user'?)",
        "10: rule 'two': strict: belongs to sliding_window and does nothing for token_bucket",
        "11: rule 'one': name: another rule on line 3 has this name; a name is a rule's identity",
        "12: rule 'one': quota.free: unknown tier; the file declares no tiers",
        "13: extra: unknown field",
    ]


def test_a_problem_is_one_line_of_text():
    """``str()`` of a problem is file, line, severity, rule, field, message, suggestion; parts that are not there are left out."""
    assert (
        str(Problem("r.yaml", 3, "x", "quota", "is bad", "good"))
        == "r.yaml:3: rule 'x': quota: is bad (did you mean 'good'?)"
    )
    assert str(Problem("r.yaml", 0, None, None, "is bad", None, "warning")) == "r.yaml: warning: is bad"
