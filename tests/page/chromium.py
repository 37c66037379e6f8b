"""A headless Chromium, driven over its debugging pipe: no port, no driver, nothing but the browser.

`python tests/page/chromium.py report.html ...` prints the processor time that pages take, as the median of five.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TICKS = os.sysconf("SC_CLK_TCK")


class Page:
    """One page in one browser."""

    def __init__(self, process: subprocess.Popen[bytes], commands: int, answers: int):
        self.process, self.commands, self.answers = process, commands, answers
        self.buffer, self.number, self.session = b"", 0, ""
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Performance"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the browser's protocol; errors of the page are collected on the way."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._answer()
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(answer["params"]["exceptionDetails"]))
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def _answer(self) -> Any:
        while b"\0" not in self.buffer:
            part = os.read(self.answers, 1 << 20)
            assert part, "the browser has ended"
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def open(self, file: Path, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Open a file, and wait until its script has drawn it."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=file.as_uri())
        ready = """new Promise(done => { const look = () => document.readyState === "complete"
            && ![...document.querySelectorAll("#explorer, figure")].some(one => !one.dataset.ready)
            ? requestAnimationFrame(() => setTimeout(() => done(1), 0)) : setTimeout(look, 20); look(); })"""
        assert self.value(ready) == 1

    def value(self, expression: str) -> Any:
        """The value of an expression; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until what was changed has been drawn, tables included."""
        self.value("new Promise(done => setTimeout(() => requestAnimationFrame(() => done(1)), 200))")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, x0: float, x1: float, y: float) -> None:
        """Drag with the left button."""
        self.mouse("mousePressed", x0, y, button="left", buttons=1, clickCount=1)
        for share in (0.3, 0.7, 1.0):
            self.mouse("mouseMoved", x0 + share * (x1 - x0), y, button="left", buttons=1)
        self.mouse("mouseReleased", x1, y, button="left", clickCount=1)
        self.settle()

    def key(self, key: str) -> None:
        """Press a key; one character is typed."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def picture(self, file: Path | None = None) -> bytes:
        """The page as PNG."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"])
        if file is not None:
            file.write_bytes(data)
        return data

    def seconds(self) -> tuple[float, float]:
        """Processor time so far: of the page's main thread, and of its process with all threads."""
        metrics = {one["name"]: one["value"] for one in self.call("Performance.getMetrics")["metrics"]}
        return metrics["TaskDuration"], max(map(_process_seconds, self._renderers()))

    def _renderers(self) -> list[int]:
        session, self.session = self.session, ""
        processes = self.call("SystemInfo.getProcessInfo")["processInfo"]
        self.session = session
        return [one["id"] for one in processes if one["type"] == "renderer"]


def _process_seconds(number: int) -> float:
    user, system = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A page in a browser of its own, which ends with the block."""
    assert BROWSER is not None
    commands_in, commands_out = os.pipe()
    answers_in, answers_out = os.pipe()

    def pipes() -> None:  # Chromium reads commands from file 3 and writes answers to file 4
        os.dup2(commands_in, 103)
        os.dup2(answers_out, 104)
        os.dup2(103, 3)
        os.dup2(104, 4)

    words = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
             f"--user-data-dir={profile}", "about:blank"]  # fmt: skip
    process = subprocess.Popen(
        words, preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(commands_in)
    os.close(answers_out)
    try:
        yield Page(process, commands_out, answers_in)
    finally:
        os.close(commands_out)
        os.close(answers_in)
        process.terminate()
        process.wait(30)


def processor_time(file: Path) -> tuple[float, float]:
    """Seconds until a page is drawn: of its main thread, and of its process with all threads."""
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as page:
        before = page.seconds()
        page.open(file)
        page.settle()
        main, process = (after - begun for begun, after in zip(before, page.seconds(), strict=True))
        return main, process


if __name__ == "__main__":
    for name in sys.argv[1:]:
        main, process = zip(*(processor_time(Path(name).resolve()) for _ in range(5)), strict=True)
        size = Path(name).stat().st_size / 1e6
        print(f"{name}: {size:.2f} MB, main thread {statistics.median(main):.2f} s, "
              f"with its threads {statistics.median(process):.2f} s")  # fmt: skip
