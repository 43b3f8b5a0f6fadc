"""The report of running runs, served on this machine only and read again when a run has written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from analysis.report.payload import embedded, page
from sdtps.system.errors import SdtpsError

HOST = "127.0.0.1"
# What a run writes while it goes on, ends or fails.
WRITTEN = ("metrics.jsonl", "status.json", "result.json", "lock.json", "run.json")


class Source:
    """The page's data, computed again when a file of a run has changed.

    Args:
        make: the data as `payload` makes it, from the runs as they are now.
        folders: where the runs of the studies lie.
    """

    def __init__(self, make: Callable[[], dict[str, Any]], folders: list[Path]) -> None:
        self._make, self._folders = make, folders
        self._lock = Lock()
        self._seen: str | None = None
        self._data: dict[str, Any] = {}

    def version(self) -> str:
        """A word that changes when a file of a run does."""
        found = []
        for folder in self._folders:
            for path in folder.glob("*/seed*/*.json*"):
                if path.name in WRITTEN:
                    try:
                        stat = path.stat()
                    except OSError:  # it was just replaced or removed
                        continue
                    found.append((str(path), stat.st_mtime_ns, stat.st_size))
        return f"{hash(tuple(sorted(found))):x}"

    def data(self) -> dict[str, Any]:
        """The data and their version; several readers at once cause one reading."""
        with self._lock:
            version = self.version()
            if version != self._seen:
                self._data = {**self._make(), "live": True, "version": version}
                self._seen = version
            return self._data

    def page(self) -> bytes:
        return b"".join(page(self.data()))

    def news(self, seen: str) -> bytes | None:
        """The data as JSON; None where the reader has seen this version."""
        if seen == self.version() == self._seen:
            return None
        return embedded(self.data()).encode()


@contextmanager
def served(source: Source, port: int = 0) -> Iterator[str]:
    """Serve `source` from a thread of its own; yields the address.

    Raises:
        SdtpsError: the port is taken or not allowed.
    """
    try:
        server = ThreadingHTTPServer((HOST, port), _handler(source))
    except (OSError, OverflowError) as error:
        raise SdtpsError(f"--port {port}: {error}. Choose another, or 0 for one that is free") from None
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(source: Source) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A page of another site must not read this one through a name that leads here.
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            if host not in (HOST, "localhost"):
                self.send_error(HTTPStatus.FORBIDDEN, "served on this machine only")
                return
            path, _, seen = self.path.partition("?")
            if path == "/":
                self._answer(source.page(), "text/html; charset=utf-8")
            elif path == "/data.json":
                news = source.news(seen)
                if news is None:
                    self.send_response(HTTPStatus.NO_CONTENT)
                    self.end_headers()
                else:
                    self._answer(news, "application/json")
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _answer(self, content: bytes, kind: str) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """A line for each question every second tells nobody anything."""

    return Handler
