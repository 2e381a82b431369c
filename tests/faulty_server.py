"""A file server on this machine that can be told to fail, and remembers what it was asked for."""

from __future__ import annotations

import hashlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STALL_LIMIT_SECONDS = 30.0


@dataclass
class FileServer:
    """Each request is answered by the next fault, if there is one left, else as a good server would."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """path and Range of each request"""
    if_ranges: list[str | None] = field(default_factory=list)
    user_agents: list[str | None] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    etags: bool = True
    closing: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str) -> str:
        return f"{self.address}/{path}"

    @property
    def ranges(self) -> list[str | None]:
        return [wanted for _, wanted in self.asked]


class Handler(BaseHTTPRequestHandler):
    files: FileServer

    def do_GET(self) -> None:  # the name http.server calls
        self.files.asked.append((self.path.lstrip("/"), self.headers.get("Range")))
        self.files.if_ranges.append(self.headers.get("If-Range"))
        self.files.user_agents.append(self.headers.get("User-Agent"))
        self.files.authorizations.append(self.headers.get("Authorization"))
        fault = self.files.faults.pop(0) if self.files.faults else whole
        fault(self)

    def content(self) -> bytes | None:
        return self.files.files.get(self.path.lstrip("/"))

    def begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as in http.server
        """Say nothing."""


Fault = Callable[[Handler], None]


def whole(handler: Handler) -> None:
    """What was asked for; also the rest of a file that has not changed."""
    send(handler)


def cut_after(count: int) -> Fault:
    """The connection is lost after that many bytes of the answer."""
    return lambda handler: send(handler, sent=count)


def spoilt(handler: Handler) -> None:
    send(handler, spoil=True)


def ignoring_range(handler: Handler) -> None:
    send(handler, heed_range=False)


def without_length(handler: Handler) -> None:
    send(handler, heed_range=False, name_length=False)


def from_a_wrong_byte(handler: Handler) -> None:
    send(handler, shift=1)


def status(code: int, **headers: str) -> Fault:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.begin(code, {"Content-Length": "0", **names})


def reset(handler: Handler) -> None:
    """Not even a status line; the connection is torn down."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.rfile = handler.wfile = open("/dev/null", "r+b", buffering=0)  # noqa: PTH123, SIM115


def stalled_after(count: int) -> Fault:
    def fault(handler: Handler) -> None:
        send(handler, sent=count)
        handler.files.closing.wait(STALL_LIMIT_SECONDS)

    return fault


def slowly(bytes_a_step: int, step_seconds: float) -> Fault:
    return lambda handler: send(handler, step=bytes_a_step, pause_seconds=step_seconds)


def chunked(*, end_early: bool) -> Fault:
    def fault(handler: Handler) -> None:
        content = handler.content() or b""
        handler.protocol_version = "HTTP/1.1"
        handler.begin(200, {"Transfer-Encoding": "chunked", "Connection": "close"})
        half = len(content) // 2
        for piece in (content[:half],) if end_early else (content[:half], content[half:], b""):
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    return fault


def send(
    handler: Handler,
    *,
    sent: int | None = None,
    spoil: bool = False,
    heed_range: bool = True,
    name_length: bool = True,
    shift: int = 0,
    step: int = 1 << 20,
    pause_seconds: float = 0.0,
) -> None:
    content = handler.content()
    if content is None:
        handler.begin(404, {"Content-Length": "0"})
        return
    etag = f'"{hashlib.sha256(content).hexdigest()[:8]}"'
    headers = {"ETag": etag} if handler.files.etags else {}
    wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
    same = handler.headers.get("If-Range", etag) == etag
    start = int(wanted[1]) + shift if wanted and same and heed_range else 0
    if start and start >= len(content):
        handler.begin(416, {"Content-Range": f"bytes */{len(content)}", "Content-Length": "0"})
        return
    if start:
        headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
    if name_length:
        headers["Content-Length"] = str(len(content) - start)
    handler.begin(206 if start else 200, headers)
    body = content[start:][:sent]
    if spoil:
        body = bytes(byte ^ 1 for byte in body)
    try:
        for place in range(0, len(body), step):
            handler.wfile.write(body[place : place + step])
            time.sleep(pause_seconds)
    except (BrokenPipeError, ConnectionResetError):
        return  # the other side is gone, as some tests want


@contextmanager
def serving() -> Iterator[FileServer]:
    class OwnHandler(Handler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), OwnHandler)
    server.daemon_threads = True
    OwnHandler.files = FileServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield OwnHandler.files
    finally:
        OwnHandler.files.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
