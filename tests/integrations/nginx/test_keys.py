"""Keys made by Lua inside nginx are those that every other client of the store makes."""

from __future__ import annotations

import ipaddress
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluicegate.bounds import SUBJECT_CHARS_MAX
from sluicegate.rules.identity.addresses import IpKeyer
from sluicegate.stores.keys import TAG_DIMENSIONS, SubjectDigests, counter_prefix, redis_frame, subject_of

VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "keys.json"
CONF = """
lua_package_path "/etc/nginx/sluicegate/?.lua;;";
client_body_buffer_size 1m;
server {
    listen 8000;
    location / {
        content_by_lua_block {
            local cjson = require "cjson"
            local keys = require "sluicegate.keys"
            local addresses = require "sluicegate.addresses"
            ngx.req.read_body()
            local asked, answer = cjson.decode(ngx.req.get_body_data()), {}
            for i, each in ipairs(asked.keys or {}) do
                local parts = {}
                for j, part in ipairs(each.parts) do
                    parts[j] = keys.part(part[1], part[2], asked.chars_max)
                end
                local subject = #parts > 0 and table.concat(parts, "|") or "*"
                local text = keys.texts(each.secret, asked.tag_dimensions)(subject)
                local plain = keys.texts(nil, asked.tag_dimensions)(subject)
                answer[i] = { subject, each.head .. text .. each.tail, each.head .. plain .. each.tail }
            end
            for i, each in ipairs(asked.addresses or {}) do
                local bytes = each:gsub("%x%x", function(pair) return string.char(tonumber(pair, 16)) end)
                answer[i] = addresses.keys(asked.v4, asked.v6)(bytes) or cjson.null
            end
            ngx.print(cjson.encode(answer))
        }
    }
}
"""


@pytest.fixture
def ask(nginx: Callable[..., Any]) -> Callable[..., Any]:
    """What Lua makes of a document."""
    running = nginx(CONF, lua=True)

    def ask(**document: object) -> Any:
        answer = running.client.post("/", content=json.dumps(document))
        assert answer.status_code == 200, running.log()
        return answer.json()

    return ask


def test_shared_vectors(ask: Callable[..., Any]) -> None:
    """Every vector has its subject, its key and its plain key."""
    vectors = json.loads(VECTORS.read_text())["keys"]
    framed = []
    for vector in vectors:
        head, tail = redis_frame(counter_prefix(*vector["prefix"]))
        framed.append({"parts": vector["parts"], "secret": vector["secret"], "head": head, "tail": tail})
    got = ask(keys=framed, chars_max=SUBJECT_CHARS_MAX, tag_dimensions=TAG_DIMENSIONS)
    assert got == [[vector["subject"], vector["key"], vector["plain_key"]] for vector in vectors]
    assert len(got) > 10


def test_values_of_any_kind(ask: Callable[..., Any]) -> None:
    """Values of any bytes and lengths, also those that become a digest, have Python's subjects and keys (T94)."""
    draw = random.Random(7)
    alphabet = "aZ09_.~-/:@=+,* {}|#%\"'\\\t\x7fäß€🙂"
    names = ("ip", "user", "api_key", "tenant", "endpoint", "header.x-id", "path")
    asked, expected = [], []
    for _ in range(300):
        length = draw.choice((1, 3, 8, SUBJECT_CHARS_MAX - 1, SUBJECT_CHARS_MAX, SUBJECT_CHARS_MAX + 1))
        parts = [
            (name, "".join(draw.choice(alphabet) for _ in range(length)))
            for name in draw.sample(names, draw.randint(1, 3))
        ]
        secret = "".join(draw.choice("0123456789abcdef") for _ in range(32))
        asked.append({"parts": parts, "secret": secret, "head": "h:", "tail": ":t"})
        subject = subject_of(parts)
        expected.append([subject, f"h:{SubjectDigests(secret.encode())[subject]}:t"])
    got = ask(keys=asked, chars_max=SUBJECT_CHARS_MAX, tag_dimensions=TAG_DIMENSIONS)
    assert [[subject, key] for subject, key, _ in got] == expected


@pytest.mark.parametrize(("v4", "v6"), [(32, 64), (24, 48), (32, 128), (20, 57), (0, 0)])
def test_addresses(ask: Callable[..., Any], v4: int, v6: int) -> None:
    """An address has the same key as in Python, for every prefix; IPv4 inside IPv6 is IPv4 (T114)."""
    draw = random.Random(11)
    texts = [
        "::",
        "::1",
        "1::",
        "2001:db8::1:0:0:1",
        "2001:db8:0:1:1:1:1:1",
        "::ffff:203.0.113.9",
        "fe80::1",
        "1:0:0:2::",
    ]
    texts += ["0.0.0.0", "255.255.255.255", "203.0.113.9"]
    for _ in range(200):
        groups = [draw.choice((0, 0, 1, 0xFFFF, draw.randrange(65536))) for _ in range(8)]
        texts.append(":".join(f"{group:x}" for group in groups))
        texts.append(str(ipaddress.IPv4Address(draw.randrange(2**32))))
    packed = [ipaddress.ip_address(text).packed.hex() for text in texts]
    key = IpKeyer(v4, v6).key
    assert ask(addresses=packed, v4=v4, v6=v6) == [key(text) for text in texts]


def test_no_address(ask: Callable[..., Any]) -> None:
    """A peer without an address, as on a Unix socket, has no key."""
    assert ask(addresses=["", "756e69783a"], v4=32, v6=64) == [None, None]
