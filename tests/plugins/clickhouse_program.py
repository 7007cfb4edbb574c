"""ClickHouse's real engine as a server of its own: a process that answers its HTTP interface from one folder. Run by ``real_clickhouse``.

``python clickhouse_program.py --folder DIR [--port N] [--password TEXT]`` prints ``ready PORT``. The engine is chDB's; what is done here is the
transport only: parameters, settings, formats, error codes, compression of inserts. User ``reader`` may read only. ``POST /fault?kind=...``
arranges for a fault (see ``Fault``). A folder can be opened by one process at a time, and again after it was killed.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import os
import re
import signal
import sys
import tempfile
import threading
import time
import zlib
from dataclasses import dataclass
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import chdb

# Parameters of the transport, not of the engine.
TRANSPORT = frozenset(
    [
        "query",
        "database",
        "query_id",
        "session_id",
        "session_timeout",
        "session_check",
        "quota_key",
        "compress",
        "decompress",
        "wait_end_of_query",
        "role",
        "client_protocol_version",
        "send_progress_in_http_headers",
        "http_headers_progress_interval_ms",
        "enable_http_compression",
        "buffer_size",
        "user",
        "password",
    ]
)
INSERT = re.compile(rb"\s*(INSERT\s+INTO\s+.*?)\s+FORMAT\s+(\w+)[ \t]*(?:\r?\n|$)", re.IGNORECASE | re.DOTALL)
FORMAT = re.compile(r"\sFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
READS = re.compile(r"\s*(SELECT|WITH|SHOW|DESC|EXPLAIN|EXISTS)\b", re.IGNORECASE)


@dataclass
class Fault:
    """What happens to the next ``times`` statements that hold ``match``.

    ``kind``: "cut": carried out, and the connection ends without a reply; "die": the same, and the process is killed; "refuse": 503 and not
    carried out; "slow": ``seconds`` later; "none": all faults end.
    """

    kind: str
    match: str
    times: int
    seconds: float


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, folder: Path, password: str) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.path = str(folder)
        self.password = password
        self.faults: list[Fault] = []
        self.lock = threading.Lock()
        self.first = chdb.connect(self.path)

    def fault_of(self, text: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.match in text:
                    fault.times -= 1
                    return fault
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/ping":
            self.answer(200, b"Ok.\n")
        else:
            self.do_POST()

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        params = dict(parse_qsl(url.query, keep_blank_values=True))
        body = self.body()
        if url.path == "/fault":
            fault = Fault(
                params["kind"],
                params.get("match", ""),
                int(params.get("times", "1")),
                float(params.get("seconds", "0")),
            )
            with self.server.lock:
                self.server.faults = [] if fault.kind == "none" else [*self.server.faults, fault]
            self.answer(200, b"")
            return
        if self.headers.get("Content-Type", "").startswith("multipart/form-data"):
            head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            parts: Any = BytesParser().parsebytes(head + body).get_payload()
            for part in parts:
                name = part.get_param("name", header="content-disposition")
                params[str(name)] = part.get_payload(decode=True).decode()
            body = b""
        statement = params.get("query", "").encode()
        statement = statement + b"\n" + body if statement and body else statement or body
        user = self.user(params)
        if user is None:
            self.fail("Code: 516. DB::Exception: Authentication failed: password is incorrect. (AUTHENTICATION_FAILED)")
            return
        self.carry_out(statement, params, user)

    def carry_out(self, statement: bytes, params: dict[str, str], user: str) -> None:
        fault = self.server.fault_of(statement[:2000].decode(errors="replace"))
        if fault is not None and fault.kind == "slow":
            time.sleep(fault.seconds)
        if fault is not None and fault.kind == "refuse":
            self.answer(
                503,
                b"Code: 202. DB::Exception: Too many simultaneous queries. (TOO_MANY_SIMULTANEOUS_QUERIES)",
                {"X-ClickHouse-Exception-Code": "202"},
            )
            return
        try:
            form, data = self.run(statement, params, user)
        except RuntimeError as error:
            self.fail(str(error))
            return
        if fault is not None and fault.kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault is not None and fault.kind == "cut":
            self.close_connection = True
            self.connection.close()
            return
        headers = {"X-ClickHouse-Format": form, "X-ClickHouse-Timezone": "UTC"}
        self.answer(
            200,
            data,
            {
                **headers,
                "X-ClickHouse-Summary": '{"written_rows":"0"}',
                "X-ClickHouse-Query-Id": params.get("query_id", ""),
            },
        )

    def run(self, statement: bytes, params: dict[str, str], user: str) -> tuple[str, bytes]:
        """Format and bytes of the answer. A handle of its own for each request, as settings belong to the handle."""
        handle = chdb.connect(self.server.path)
        try:
            if params.get("database"):
                name = params["database"].replace("\\", "\\\\").replace("`", "\\`")
                handle.query(f"USE `{name}`")
            for name, value in params.items():
                if name not in TRANSPORT and not name.startswith("param_") and name.isidentifier():
                    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
                    handle.query(f"SET {name} = '{quoted}'")
            if user == "reader":
                handle.query("SET readonly = 1")
            insert = INSERT.match(statement)
            if insert and not READS.match(statement[insert.end() :][:20].decode(errors="replace")):
                return self.insert(handle, insert, statement[insert.end() :])
            text = statement.decode()
            found = FORMAT.search(text)
            form = found[1] if found else "TabSeparated"
            values = {name[6:]: value for name, value in params.items() if name.startswith("param_")}
            return form, handle.query(text[: found.start()] if found else text, form, params=values).bytes() or b""
        finally:
            handle.close()

    def insert(self, handle: Any, found: re.Match[bytes], data: bytes) -> tuple[str, bytes]:
        with tempfile.NamedTemporaryFile(dir=self.server.path, suffix=".in") as file:
            file.write(data)
            file.flush()
            handle.query(f"{found[1].decode()} FROM INFILE '{file.name}' COMPRESSION 'none' FORMAT {found[2].decode()}")
        return "Null", b""

    def user(self, params: dict[str, str]) -> str | None:
        """Who asks; None where the password is wrong."""
        name, password = self.headers.get("X-ClickHouse-User", "default"), self.headers.get("X-ClickHouse-Key", "")
        basic = self.headers.get("Authorization", "")
        if basic.startswith("Basic "):
            name, _, password = base64.b64decode(basic[6:]).decode().partition(":")
        name, password = params.get("user", name), params.get("password", password)
        return name if password == self.server.password else None

    def body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            data = b"".join(parts)
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        coding = self.headers.get("Content-Encoding", "")
        if coding == "gzip":
            return gzip.decompress(data)
        return zlib.decompress(data) if coding == "deflate" else data

    def fail(self, message: str) -> None:
        start = max(message.find("Code: "), 0)
        code = re.match(r"Code: (\d+)", message[start:])
        number = code[1] if code else "1002"
        status = {"516": 403, "497": 403, "81": 404, "60": 404}.get(number, 500 if number in {"159", "241"} else 400)
        self.answer(status, message[start:].encode(), {"X-ClickHouse-Exception-Code": number})

    def answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--password", default="")
    given = parser.parse_args()
    server = Server(given.port, given.folder, given.password)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start())
    print(f"ready {server.server_port}", flush=True)
    server.serve_forever(0.1)
    server.first.close()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
