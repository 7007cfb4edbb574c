"""The JSON of requests and answers against generated code, which knows ProtoJSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.doors.grpc.codec import UNIT_SECONDS
from sluicegate.doors.grpc.json_form import is_over_limit, request_of_json, response_as_json
from sluicegate.errors import InvalidRequest

texts = st.text(max_size=20)
descriptors = st.lists(
    st.tuples(
        st.lists(st.tuples(texts, texts), max_size=3),
        st.none() | st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([0, *UNIT_SECONDS])),
        st.none() | st.integers(0, 2**64 - 1),
        st.booleans(),
    ),
    max_size=3,
)


@given(texts, descriptors, st.integers(0, 2**32 - 1), st.booleans())
def test_requests_mean_what_generated_code_reads(pb: Any, domain: str, parts: Any, hits: int, snake: bool) -> None:
    """What generated code writes as JSON, with either kind of names, becomes the message it was written from."""
    request = pb.RateLimitRequest(domain=domain, hits_addend=hits)
    for pairs, limit, own, negative in parts:
        made = request.descriptors.add(is_negative_hits=negative)
        for key, value in pairs:
            made.entries.add(key=key, value=value)
        if limit is not None:
            made.limit.requests_per_unit, made.limit.unit = limit
        if own is not None:
            made.hits_addend.value = own
    text = json_format.MessageToJson(request, preserving_proto_field_name=snake)
    assert pb.RateLimitRequest.FromString(request_of_json(text.encode())) == request


ODD = [
    '{"domain":"d","hitsAddend":"7"}', '{"domain":"d","hitsAddend":7.0}', '{"domain":"d","hits_addend":1e1}', '{"domain":null}', "{}",
    '{"descriptors":[{"hitsAddend":"18446744073709551615"}]}', '{"descriptors":[{"limit":{"unit":2}}]}', '{"descriptors":null}',
    '{"domain":"\\u00e9\\ud83d\\ude00"}',
]  # fmt: skip
BAD = [
    ("", ""), ("[]", ""), ("{", ""), ("nul", ""), ('{"domain":7}', "domain"), ('{"domain":"d","domain":"e"}', "domain"), ('{"nothing":1}', "nothing"),
    ('{"hitsAddend":1,"hits_addend":1}', "hits_addend"), ('{"hitsAddend":-1}', "hits_addend"), ('{"hitsAddend":1.5}', "hits_addend"),
    ('{"hitsAddend":4294967296}', "hits_addend"), ('{"hitsAddend":true}', "hits_addend"), ('{"hitsAddend":"x"}', "hits_addend"),
    ('{"hitsAddend":NaN}', ""), ('{"descriptors":{}}', "descriptors"), ('{"descriptors":[1]}', "descriptors[0]"),
    ('{"descriptors":[{"entries":[{"key":"k","v":"x"}]}]}', "descriptors[0].entries[0].v"), ('{"domain":"\\ud800"}', ""),
    ('{"descriptors":[{"limit":{"unit":"FORTNIGHT"}}]}', "descriptors[0].limit.unit"), ('{"descriptors":[{"limit":{"unit":8}}]}', "descriptors[0].limit.unit"),
    ('{"descriptors":[{"isNegativeHits":"yes"}]}', "descriptors[0].is_negative_hits"), ("[" * 100_000, ""), ('{"domain":"\xff"}', ""),
]  # fmt: skip


@pytest.mark.parametrize("text", ODD)
def test_odd_spellings_are_read_as_generated_code_reads_them(pb: Any, text: str) -> None:
    """Numbers as texts and with a fraction of zero, enums by number, null for absent."""
    assert pb.RateLimitRequest.FromString(request_of_json(text.encode())) == json_format.Parse(
        text, pb.RateLimitRequest()
    )


@pytest.mark.parametrize(("name", "number"), [("SECOND", 1), ("YEAR", 6), ("WEEK", 7), ("UNKNOWN", 0)])
def test_units_have_names(name: str, number: int) -> None:
    """A unit by its name is the unit by its number."""
    text = '{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"limit":{"requestsPerUnit":5,"unit":%s}}]}'
    assert request_of_json((text % f'"{name}"').encode()) == request_of_json((text % number).encode())


@pytest.mark.parametrize(("text", "field"), BAD)
def test_what_is_no_request_is_refused_naming_the_member(text: str, field: str) -> None:
    """Strict as generated code: unknown, doubled, negative, too large, of another type; and text that is no JSON."""
    with pytest.raises(InvalidRequest) as caught:
        request_of_json(text.encode("latin-1") if "\xff" in text else text.encode())
    assert caught.value.field == field


@pytest.mark.parametrize(
    "text", ["", " 5", "5 ", "+5", "05", "1_0", "0x10", "\u0663", "1.", ".5", "inf", "1e400", "-1", "9" * 5000]
)
def test_a_text_that_is_no_number_of_json(text: str) -> None:
    """A number in a text is spelled as JSON spells numbers; what else Python reads as one is refused."""
    with pytest.raises(InvalidRequest) as caught:
        request_of_json(json.dumps({"domain": "d", "hitsAddend": text}).encode())
    assert caught.value.field == "hits_addend"


@pytest.mark.parametrize("headers", ["x-ratelimit", "ietf,x-ratelimit-epoch", "off"])
async def test_answers_say_what_the_message_says(bench: Callable[..., Any], headers: str) -> None:
    """The JSON of an answer, read by generated code, is the message; passes and refusals, with and without a limit."""
    services = bench(headers=headers)
    refusals = 0
    for _ in range(4):
        for asked in (["api_key=a"], ["route=login ip=1", "api_key=b"], ["other=1"]):
            request = services.request(*asked)
            message = (await services.send(request.SerializeToString())).SerializeToString()
            response = services.pb.RateLimitResponse.FromString(message)
            assert json_format.Parse(response_as_json(message), services.pb.RateLimitResponse()) == response
            assert is_over_limit(message) == (response.overall_code == 2)
            refusals += is_over_limit(message)
    assert refusals > 0
    assert json.loads(response_as_json(message))["overallCode"] == "OK"
