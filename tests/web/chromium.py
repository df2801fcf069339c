"""Drive headless Chromium through a pipe, with its GPU in software."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

#: Chromium's software GPU; as root there is no sandbox.
FLAGS = ("--headless=new", "--no-sandbox", "--enable-unsafe-webgpu", "--disable-gpu-watchdog", "--no-first-run", "--hide-scrollbars")

#: Dawn clears workgroup memory by generated loops, which the software GPU takes seconds to compile; drivers have an extension for it.
FAST = "--enable-dawn-features=disable_workgroup_init"


class Chromium:
    """A browser with one page, spoken to in the DevTools protocol: JSON that ends with a zero byte, on file descriptors 3 and 4."""

    def __init__(self, *flags: str, size: tuple[int, int] = (1100, 800)) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        assert program is not None, "these tests need Chromium: apt-get install chromium"
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (to_read, self._commands), (self._answers, to_write) = os.pipe(), os.pipe()
        arguments = [
            *FLAGS,
            *flags,
            f"--window-size={size[0]},{size[1]}",
            f"--user-data-dir={self._profile.name}",
            "--remote-debugging-pipe",
        ]
        script = f'exec "$@" 3<&{to_read} 4>&{to_write}'  # bash moves the descriptors to where Chromium expects them
        command = ["bash", "-c", script, "bash", program, *arguments, "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        os.close(to_read)
        os.close(to_write)
        self._reader = os.fdopen(self._answers, "rb")
        self._pending = b""
        self._numbers = itertools.count(1)
        #: Events that have arrived, such as messages on the console.
        self.events: list[dict[str, Any]] = []
        self._session = ""
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            os.write(self._commands, b'{"id": 0, "method": "Browser.close"}\0')
            self._process.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        self._reader.close()
        self._profile.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": self._session} if self._session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while (answer := self._receive()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            data = os.read(self._answers, 1 << 20)
            assert data, "Chromium has ended"
            self._pending += data
        text, _, self._pending = self._pending.partition(b"\0")
        return json.loads(text)

    def open(self, page: Path | str) -> None:
        """Open a file and wait until it has been loaded."""
        self.events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression, once it is known if it is a promise."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"].get("exception", result).get("description", result)
        return result["result"].get("value")

    def run(self, script: str, *arguments: Any) -> Any:
        """Call a function, which is given as text, with arguments that JSON can hold."""
        return self.evaluate(f"({script})({', '.join(map(json.dumps, arguments))})")

    def pointer(self, kind: str, x: float, y: float, touch: bool = False) -> None:
        """Press, move or release the mouse or a finger."""
        if touch:
            kinds = {"Pressed": "touchStart", "Moved": "touchMove", "Released": "touchEnd"}
            self.call("Input.dispatchTouchEvent", type=kinds[kind], touchPoints=[] if kind == "Released" else [{"x": x, "y": y}])
        else:
            held = {"button": "left", "buttons": 0 if kind == "Released" else 1, "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **held)

    def key(self, key: str, text: str = "") -> None:
        """Press and release a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def type(self, text: str) -> None:
        """Type text into what has the focus."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Save a picture of the page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
