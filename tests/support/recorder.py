"""A forwarder in front of a router that keeps what was asked through it: each controller gets one of its own."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

SECONDS = 60.0


class Asked(NamedTuple):
    """One request, when it came in."""

    at: float
    method: str
    path: str


class Recorder:
    """Where it listens, and what came."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []
        self.holding = 0
        """So many of the next removals are passed on only when `released` is set, whoever waits for them or not."""
        self.held = 0
        self.released = threading.Event()
        self.landed: list[int] = []
        """What the router answered to those, in the end."""

    def changes(self) -> list[Asked]:
        """Those that could change the router."""
        return [asked for asked in self.asked if asked.method != "GET"]


@contextmanager
def recording(router_url: str) -> Generator[Recorder]:
    """Forward to the router at `router_url`, on a free port of loopback."""
    target = urlsplit(router_url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            recorder.asked.append(Asked(time.monotonic(), self.command, self.path))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            late = self.command == "DELETE" and recorder.holding > 0
            if late:
                recorder.holding -= 1
                recorder.held += 1
                recorder.released.wait(SECONDS)
            router = http.client.HTTPConnection(target.hostname or "", target.port, timeout=SECONDS)
            try:
                kept = {
                    name: value for name, value in self.headers.items() if name.lower() not in {"host", "connection"}
                }
                router.request(self.command, self.path, body, kept)
                answer = router.getresponse()
                content = answer.read()
                if late:
                    recorder.landed.append(answer.status)
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except (OSError, http.client.HTTPException):
                self.close_connection = True
            finally:
                router.close()

        do_GET = do_POST = do_DELETE = do_PUT = forward  # noqa: N815 - the names that the library calls

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the library's
            """Nothing: the recorder has it."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Nothing: a controller that is killed leaves its connections to themselves."""

    server = Server(("127.0.0.1", 0), Handler)
    recorder = Recorder(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield recorder
    finally:
        recorder.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
