"""`hetsim report --watch`: serves a page of results while they are written.

Only this machine is served.  A request after a change of the directory makes the page again; no file is written.
"""

import math
import threading
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hetsim.errors import HetsimError, UsageError
from hetsim.experiment.directory import load_any
from hetsim.experiment.partial import planned_again, so_far
from hetsim.experiment.sweep import SweepPlan
from hetsim.page import NAME, elements, report
from hetsim.results.many_runs.sweep import MARK, TABLES
from hetsim.results.stored_files import reading_stored

HOST = "127.0.0.1"
PERIOD = 2.0  # seconds between two checks of the directory
RELOAD = """<script>
const looks = setInterval(async () => {
  if (await (await fetch("/state")).text() !== "{state}") { clearInterval(looks); location.reload(); }
}, {milliseconds});
</script>
</body>"""  # Polls with requests that end: a browser has few connections per host, which other pages need


class Watched:
    """A directory of results, served as a page that is made again when files change."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._lock = threading.Lock()  # pages are made one at a time: one that waited for another finds it made
        self._made, self._text = "", ""  # the state of the directory when the page was made, and the page
        self._rests_until = -math.inf
        self._plan: tuple[str, SweepPlan] | None = None

    @property
    def state(self) -> str:
        """A text that changes when the page must be made again."""
        if time.monotonic() < self._rests_until:  # reading takes at most half of the time: runs need the processor
            return self._made
        try:
            return _state(path for path in (*self.folder.glob("*"), *self.folder.glob("*/*")) if path.name != NAME)
        except OSError:  # a folder that goes while it is read
            return "changing"

    def page(self) -> str:
        """Return the page, with a script that reloads it after a change."""
        with self._lock:
            state = self.state
            if not self._text or self._made != state:
                begun = time.monotonic()
                script = RELOAD.replace("{state}", state).replace("{milliseconds}", f"{1000 * PERIOD:.0f}")
                self._made, self._text = state, self._page().replace("</body>", script)
                self._rests_until = 2 * time.monotonic() - begun
            return self._text

    def _page(self) -> str:
        try:
            # Warnings: the page itself names pictures that failed.
            with reading_stored(self.folder), warnings.catch_warnings(action="ignore"):
                if (self.folder / MARK).is_file() and not (self.folder / TABLES).is_file():
                    return self._unfinished()
                if self.folder.is_dir() and any(self.folder.iterdir()):
                    return report(load_any(self.folder), str(self.folder))
            said = "There are no results yet."
        except (HetsimError, OSError) as problem:  # also of a file that is replaced while it is read
            said = str(problem)
        return _words(self.folder, said)

    def _unfinished(self) -> str:
        mark = _state([self.folder / MARK])
        if self._plan is None or self._plan[0] != mark:
            self._plan = mark, planned_again(self.folder)
        sweep = so_far(self._plan[1], self.folder)
        return _words(self.folder, "No point has all its runs yet.") if sweep is None else report(sweep)


def _state(paths: Iterable[Path]) -> str:
    texts = []
    for path in sorted(paths):
        with suppress(OSError):  # gone by now
            about = path.stat()
            texts.append(f"{path} {about.st_size} {about.st_mtime_ns}")
    return sha256("\n".join(texts).encode(errors="backslashreplace")).hexdigest()[:16]


def _words(folder: Path, text: str) -> str:
    waits = f"This page checks {folder} for results every {PERIOD:g} s."
    return elements.page(folder.name or str(folder), [text, waits], [])


class PageServer(ThreadingHTTPServer):
    """HTTP server on the loopback interface for the HTML page of a results directory."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0):
        """`port`: 0 for any free port.  Raises: UsageError: the port is not available."""
        self.watched = Watched(folder)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as problem:
            said = f"port {port} of {HOST} cannot be used: {problem.strerror}; give another --port"
            raise UsageError(said) from None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def handle(self) -> None:
        with suppress(OSError):  # a client that disconnects is no error
            super().handle()

    def do_GET(self) -> None:  # noqa: N802
        watched = self.server.watched
        # A page from elsewhere can give this machine a name of its own, and would read along under that name.
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}:
            self.send_error(403)
        elif self.path == "/":
            self._send(watched.page(), "text/html; charset=utf-8")
        elif self.path == "/state":
            self._send(watched.state, "text/plain; charset=utf-8")
        else:
            self.send_error(404)

    def _send(self, text: str, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(text.encode(errors="backslashreplace"))

    def log_message(self, *_: object) -> None:
        """Write nothing to stderr about requests."""
