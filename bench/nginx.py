"""Requests per second of nginx with the limiter inside (Lua on counters in Redis), by ``auth_request``, and without a limiter.

    python bench/nginx.py [--seconds 2] [--rounds 3]

One worker of nginx on one core, before a backend of its own (``return 200`` in another server block); Redis, the server of the rules and
the load (wrk, 32 connections) share the other core. Two rules match each request, one per address and one for everybody, and nothing is ever refused:
any other answer than 200 ends the run. The configurations are those of ``integrations/nginx``.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from _report import of_rates, of_ratios, tell
from _servers import cores, free_port, pinned, redis_server

INTEGRATION = Path(__file__).resolve().parent.parent / "integrations" / "nginx"
MODULES = Path("/usr/lib/nginx/modules")
CONNECTIONS = 32
RULES = """
version: 1
identity: {trusted_peers: [127.0.0.0/8]}
rules:
  - {name: floor, quota: 1000000/second}
  - {name: api, match: {path: /api/**}, per: [ip], quota: 1000000/second}
"""
BARE = """
upstream backend { server 127.0.0.1:9000; keepalive 16; }
server {
    listen 8000;
    location / { proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection ""; }
}
"""
MAIN = """
load_module {modules}/ndk_http_module.so;
load_module {modules}/ngx_http_lua_module.so;
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log error;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {text}
    server {{ listen 127.0.0.1:{backend} reuseport; keepalive_requests 1000000; location / {{ return 200 "served\\n"; }} }}
}}
"""


@contextlib.contextmanager
def running(command: list[str], url: str) -> Iterator[None]:
    """Run a program until the block ends; it must answer at ``url`` within ten seconds."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 10
        while True:
            try:
                with urllib.request.urlopen(url):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(10)


def rate(text: str, seconds: int, at: tuple[int | None, int | None]) -> float:
    """Requests a second through nginx by this configuration."""
    port, backend = free_port(), free_port()
    text = text.replace("listen 8000;", f"listen 127.0.0.1:{port};").replace("127.0.0.1:9000", f"127.0.0.1:{backend}")
    text = text.replace("/etc/nginx/sluicegate/", f"{INTEGRATION}/lua/")
    binary = shutil.which("nginx")
    if binary is None or not MODULES.exists():
        raise SystemExit("this benchmark needs nginx with its Lua module (see scripts/programs)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Workers are another user than root, and read the Lua code and these files.
        folder.chmod(0o755)
        (folder / "nginx.conf").write_text(MAIN.format(modules=MODULES, folder=folder, text=text, backend=backend))
        url = f"http://127.0.0.1:{port}/api/x"
        with running([*pinned(at[0]), binary, "-p", name, "-c", str(folder / "nginx.conf")], url):
            wrk(url, 1, at[1])
            found = wrk(url, seconds, at[1])
        failed = (folder / "error.log").read_text()
    if failed:
        raise SystemExit(failed[:2000])
    return found


def wrk(url: str, seconds: int, core: int | None) -> float:
    command = [*pinned(core), "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", url]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"Requests/sec:\s+([\d.]+)", out)
    if "Socket errors" in out or "Non-2xx" in out or found is None:
        raise SystemExit(out)
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    at = cores()
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, redis_server(at[1]) as redis_port:
        rules, api = Path(name) / "rules.yaml", free_port()
        rules.write_text(RULES)
        store = f"redis://127.0.0.1:{redis_port}?timeout_ms=5000"
        serve = [sys.executable, "-m", "sluicegate", "serve", "--rules", str(rules), "--store", store]
        lua = (INTEGRATION / "lua.conf").read_text().replace("port = 6379", f"port = {redis_port}, timeout_ms = 5000")
        lua = lua.replace("port = 8081", f"port = {api}")
        asking = (INTEGRATION / "auth_request.conf").read_text().replace("127.0.0.1:8081", f"127.0.0.1:{api}")
        texts = {"no limiter": BARE, "Lua": lua, "auth_request": asking.replace("100ms", "5s").replace("200ms", "5s")}
        with running([*pinned(at[1]), *serve, "--api", f"127.0.0.1:{api}"], f"http://127.0.0.1:{api}/livez"):
            for number in range(options.rounds):
                order = list(texts.items())
                for kind, text in order if number % 2 else reversed(order):
                    rates.setdefault(kind, []).append(rate(text, options.seconds, at))
    for kind, each in rates.items():
        print(f"{kind:<14}{max(each):>10,.0f} requests/s")
    bare = rates["no limiter"]
    tell(
        [
            of_rates("nginx without a limiter: requests per second", bare, ""),
            of_rates("nginx, Lua: requests per second", rates["Lua"], ""),
            of_rates("nginx, auth_request: requests per second", rates["auth_request"], ""),
            of_ratios("nginx, Lua: beside no limiter, requests per second", rates["Lua"], bare),
            of_ratios("nginx, auth_request: beside no limiter, requests per second", rates["auth_request"], bare),
        ]
    )


if __name__ == "__main__":
    main()
