"""What each header field becomes on its way to the upstream and back."""

from __future__ import annotations

import pytest

from sluicegate.doors.gateway.names import connection_options, request_names

HEAD = b"GET /a HTTP/1.1\r\nHost: api.example\r\n"


async def mirror(line):
    """Answer with the head that arrived."""
    while True:
        head = await line.head()
        line.backend.heads.append(head)
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))


def lines(body):
    """The field lines the upstream got."""
    return body.decode("latin-1").split("\r\n")[1:-2]


USUAL = ["Host: api.example", "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Proto: http", "X-Forwarded-Host: api.example"]
VIA = "Via: 1.1 sluicegate"


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        (b"", []),
        (b"accept: */*\r\nAccept: text/html\r\nX-Empty:\r\n", ["accept: */*", "Accept: text/html", "X-Empty: "]),
        (b"Connection: keep-alive, X-Mine\r\nKeep-Alive: timeout=5\r\nX-Mine: 1\r\nX-Yours: 2\r\n", ["X-Yours: 2"]),
        (b"Connection: X-A\r\nConnection: x-b\r\nX-A: 1\r\nX-B: 2\r\n", []),
        (b"Proxy-Connection: close\r\nProxy-Authorization: Basic abc\r\nProxy: http://evil\r\n", []),
        (b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAA\r\nConnection: Upgrade, HTTP2-Settings\r\n", []),
        (b"Upgrade: websocket\r\n", []),
        (b"TE: gzip, xtrailers\r\n", []),
        (b"TE: trailers\r\nConnection: TE\r\n", ["Connection: TE", "TE: trailers"]),
        (b"Connection: Authorization, Cookie\r\nAuthorization: a\r\nCookie: b\r\n", ["Authorization: a", "Cookie: b"]),
        (b"X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\n", []),
        (b"X-Real-IP: 1.2.3.4\r\nTrue-Client-IP: 1.2.3.4\r\nX-Forwarded-Port: 1\r\nX-Forwarded-Prefix: /x\r\n", []),
        (b"Forwarded: for=1.2.3.4\r\n", []),
        (b"X_Forwarded_For: 1.2.3.4\r\nX-Forwarded_For: 1.2.3.4\r\nContent_Length: 5\r\n", []),
        (b"X_Custom: 1\r\n", ["X_Custom: 1"]),
    ],
)
async def test_fields_from_a_stranger(world, sent, arrives):
    """End-to-end fields pass in order; those of the hop end; what is said of the client's connection is replaced."""
    w = await world(mirror)
    got = lines((await w.ask(HEAD + sent + b"\r\n")).body)
    assert sorted(got) == sorted([*USUAL, VIA, *arrives])


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        (b"", [*USUAL, VIA]),
        (b"X-Forwarded-For: 192.0.2.7\r\n", [USUAL[0], "X-Forwarded-For: 192.0.2.7, 127.0.0.1", *USUAL[2:], VIA]),
        (
            b"X-Forwarded-For: 192.0.2.7\r\nx-forwarded-for: 192.0.2.8\r\n",
            [USUAL[0], "X-Forwarded-For: 192.0.2.7, 192.0.2.8, 127.0.0.1", *USUAL[2:], VIA],
        ),
        (
            b"X-Forwarded-Proto: https\r\nX-Forwarded-Host: shop.example\r\nX-Real-IP: 192.0.2.7\r\n",
            [
                *USUAL[:2],
                "X-Forwarded-Proto: https",
                "X-Forwarded-Host: shop.example",
                "X-Real-IP: 192.0.2.7",
                VIA,
            ],
        ),
        (
            b"Forwarded: for=192.0.2.7;proto=https\r\nForwarded: for=192.0.2.8\r\n",
            [
                *USUAL,
                'Forwarded: for=192.0.2.7;proto=https, for=192.0.2.8, for=127.0.0.1;host="api.example";proto=http',
                VIA,
            ],
        ),
        (b"X-User-Id: 8123\r\n", [*USUAL, "X-User-Id: 8123", VIA]),
        (b"X_User_Id: 8123\r\n", [*USUAL, VIA]),
        (b"Via: 1.0 edge\r\n", [*USUAL, "Via: 1.0 edge, 1.1 sluicegate"]),
        (
            b"Connection: X-Forwarded-For, X-User-Id, Via, Host\r\nX-Forwarded-For: 192.0.2.7\r\nX-User-Id: 1\r\n",
            [USUAL[0], "X-Forwarded-For: 192.0.2.7, 127.0.0.1", *USUAL[2:], "X-User-Id: 1", VIA],
        ),
    ],
)
async def test_fields_from_a_trusted_peer(world, trusting, sent, arrives):
    """Its word about its client is kept and extended; naming it in Connection does not erase it."""
    w = await world(mirror, rules=trusting)
    assert sorted(lines((await w.ask(HEAD + sent + b"\r\n")).body)) == sorted(arrives)


async def test_identity_headers_of_strangers_do_not_reach_the_upstream(world, trusting):
    """Neither the rules nor the backend can be fooled by a header that only the proxy in front may set."""
    rules = trusting.replace("127.0.0.0/8", "10.0.0.0/8")
    sent = HEAD + b"X-User-Id: admin\r\nx_user_id: admin\r\nX-User-ID: admin\r\n\r\n"
    w = await world(mirror, rules=rules)
    assert sorted(lines((await w.ask(sent)).body)) == sorted([*USUAL, VIA])
    kept = await world(mirror, rules=rules, strip_identity=False)
    assert [line for line in lines((await kept.ask(sent)).body) if "admin" in line] == [
        "X-User-Id: admin",
        "X-User-ID: admin",
    ]


async def test_a_credential_we_check_goes_on_to_the_upstream(world, tmp_path):
    """Only headers that are believed for the sender's sake are removed; a token proves itself."""
    (tmp_path / "keys").write_text("alice: sha256:" + "0" * 64 + "\n")
    rules = f"""
version: 1
identity:
  api_key: {{header: X-API-Key, keys: {tmp_path / "keys"}}}
rules:
  - {{name: all, per: [api_key], quota: 5/second}}
"""
    w = await world(mirror, rules=rules)
    assert "X-API-Key: k1" in lines((await w.ask(HEAD + b"X-API-Key: k1\r\n\r\n")).body)


async def test_settings_of_the_forwarded_fields(world):
    """Host may be the upstream's own, the scheme that of a balancer in front, Via absent, Forwarded present."""
    w = await world(mirror, preserve_host=False, proto="https", via="", forwarded=True)
    got = lines((await w.ask(HEAD + b"\r\n")).body)
    assert got == [
        f"Host: 127.0.0.1:{w.backend.port}",
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: api.example",
        'Forwarded: for=127.0.0.1;host="api.example";proto=https',
    ]


async def test_an_old_client_without_host_gets_the_upstreams(world):
    """HTTP/1.0 has no Host; the upstream is spoken to in HTTP/1.1, which needs one."""
    w = await world(mirror)
    body = (await w.ask(b"GET /a HTTP/1.0\r\n\r\n")).body
    assert body.startswith(b"GET /a HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % w.backend.port)
    assert b"\r\nVia: 1.0 sluicegate\r\n" in body


async def test_fields_of_the_answer(world):
    """Hop-by-hop fields end here too; everything else passes in order with its spelling."""

    async def serve(line):
        await line.head()
        line.send(
            b"HTTP/1.1 201 All Right\r\nset-cookie: a=1\r\nSet-Cookie: b=2\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\n"
            b"Keep-Alive: timeout=5\r\nServer: s/1\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\nX-E:\r\nContent-Length: 0\r\n\r\n"
        )
        await line.head()

    w = await world(serve, headers="off")
    reply = await w.ask(HEAD + b"\r\n")
    assert reply.raw == (
        b"HTTP/1.1 201 All Right\r\nset-cookie: a=1\r\nSet-Cookie: b=2\r\nServer: s/1\r\nX-E: \r\nContent-Length: 0\r\n\r\n"
    )


def test_the_memo_of_names_is_bounded():
    """A client that makes up names cannot fill memory with them."""
    names = request_names([b"x-user-id"])
    for index in range(10_000):
        names.classify(b"X-%d" % index)
    assert len(names.kinds) <= 2_048
    for index in range(10_000):
        connection_options(b"X-%d" % index)


def test_connection_options_are_read_whatever_their_case_and_spacing():
    """Empty members are nothing."""
    options = connection_options(b" Close ,, KEEP-ALIVE,\tX-A,upgrade")
    assert options == (True, True, True, frozenset({b"x-a"}))
