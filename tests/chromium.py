"""Chromium without a window, driven through its debugging pipe: nothing to install but the browser itself.

Messages are JSON ended by a zero byte, to the browser on descriptor 3 and back on 4. Everything that the page and its
workers ask of the network, and all that they complain about, is kept.
"""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-pipe",
)  # fmt: skip


def key_events(key: str) -> list[tuple[str, dict[str, Any]]]:
    """The messages for one press of a key: a character, or a name such as Enter, Space or Tab."""
    names = {"Enter": "\r", "Space": " "}
    text = names.get(key, key if len(key) == 1 else "")
    code = {"Enter": 13, "Space": 32, "Tab": 9, "Backspace": 8, "ArrowRight": 39, "ArrowDown": 40}.get(key, 0)
    event = {"key": " " if key == "Space" else key, "windowsVirtualKeyCode": code}
    down = {"type": "keyDown" if text else "rawKeyDown", "text": text, **event}
    return [("Input.dispatchKeyEvent", down), ("Input.dispatchKeyEvent", {"type": "keyUp", **event})]


class Chromium:
    """One browser with one page, as on a phone. Leave it with `close`."""

    def __init__(self, profile: Path, *, width: int = 390, height: int = 844, dark: bool = False) -> None:
        assert CHROMIUM
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        command = [CHROMIUM, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", *command],
            pass_fds=(to_read, to_write), start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number = b"", 0
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.handled: list[tuple[str, float]] = []
        self._is_tracing = False
        targets = self._send("Target.getTargets", {})["targetInfos"]
        page = next(row["targetId"] for row in targets if row["type"] == "page")
        self._session = self._send("Target.attachToTarget", {"targetId": page, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.send(f"{domain}.enable")
        self.send("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True)
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=True)
        self.send("Emulation.setTouchEmulationEnabled", enabled=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def close(self) -> None:
        """End the browser and all its processes."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the page's side of the protocol."""
        return self._send(method, parameters, self._session)

    def _send(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        self._number = number = self._number + 1
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(60.0)
            assert answer is not None, f"{method} was not answered"
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def send_all(self, messages: Sequence[tuple[str, dict[str, Any]]], batch: int = 100) -> None:
        """Send many messages, and wait for the answers of each batch only: events as fast as the page takes them."""
        for first in range(0, len(messages), batch):
            waiting = set()
            for method, parameters in messages[first : first + batch]:
                self._number += 1
                waiting.add(self._number)
                message = {"id": self._number, "method": method, "params": parameters, "sessionId": self._session}
                os.write(self._to, json.dumps(message).encode() + b"\0")
            while waiting:
                answer = self._receive(60.0)
                assert answer is not None, "events were not answered"
                assert answer.get("id") not in waiting or "error" not in answer, answer
                waiting.discard(answer.get("id", -1))

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """The next message, noted if it is an event."""
        end = monotonic() + seconds
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], max(0.0, end - monotonic()))[0]:
                return None
            piece = os.read(self._from, 1 << 16)
            assert piece, "the browser ended"
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        details = message.get("params", {})
        match message.get("method"):
            case "Tracing.dataCollected":
                for event in details["value"]:
                    if event["name"] == "EventDispatch" and "tdur" in event:
                        self.handled.append((event["args"]["data"]["type"], event["tdur"] / 1000))
            case "Tracing.tracingComplete":
                self._is_tracing = False
            case "Network.requestWillBeSent":
                self.requests.append(details["request"]["url"])
            case "Network.webSocketCreated":
                self.requests.append(details["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(details["exceptionDetails"]))
            case "Log.entryAdded" if details["entry"]["level"] in ("error", "warning"):
                self.complaints.append(str(details["entry"]))
            case "Runtime.consoleAPICalled" if details["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(details["args"]))
            case "Target.attachedToTarget" if (
                details["targetInfo"]["type"] != "page"
            ):  # a worker: follow it without waiting, answers are passed over
                for domain in ("Runtime", "Log", "Network"):
                    self._number += 1
                    follow = {"id": self._number, "method": f"{domain}.enable", "sessionId": details["sessionId"]}
                    os.write(self._to, json.dumps(follow).encode() + b"\0")

    def begin_trace(self) -> None:
        """Note how long the page's event handlers compute."""
        self.handled.clear()
        self.send(
            "Tracing.start", traceConfig={"includedCategories": ["devtools.timeline"]}, transferMode="ReportEvents"
        )

    def end_trace(self, *kinds: str) -> list[float]:
        """Milliseconds on the processor of each handled event of some kinds, such as keydown, since the trace began.

        Unlike time on the clock, this does not depend on what else the machine does.
        """
        self._is_tracing = True
        self.send("Tracing.end")
        while self._is_tracing:
            assert self._receive(60.0) is not None, "the trace did not end"
        return [ms for kind, ms in self.handled if kind in kinds]

    def drain(self) -> None:
        """Take in the events that have come."""
        while self._receive(0.2) is not None:
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page, promises awaited; the page's policy holds for it too."""
        answer = self.send(
            "Runtime.evaluate",
            expression=expression, awaitPromise=True, returnByValue=True, allowUnsafeEvalBlockedByCSP=False,
        )  # fmt: skip
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 30.0) -> Any:
        """The first true value of an expression."""
        end = monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert monotonic() < end, f"waited in vain for {expression}"
            sleep(0.05)
        return value

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        image = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(image["data"]))

    def centre(self, selector: str) -> tuple[float, float]:
        """Where an element is, brought into view."""
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'nearest'}); const b = e.getBoundingClientRect(); "
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return box[0], box[1]

    def click(self, x: float, y: float) -> None:
        """A press of a mouse's button."""
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def touch(self, points: Sequence[tuple[float, float]]) -> None:
        """A finger that comes down, moves along points, and is lifted."""
        kinds = ["touchStart", *["touchMove"] * (len(points) - 1)]
        steps = [{"type": kind, "touchPoints": [{"x": x, "y": y}]} for kind, (x, y) in zip(kinds, points, strict=True)]
        steps.append({"type": "touchEnd", "touchPoints": []})
        if len(points) == 1:  # together: on a busy machine, a tap would otherwise become a long press
            self.send_all([("Input.dispatchTouchEvent", step) for step in steps])
            return
        for step in steps:
            self.send("Input.dispatchTouchEvent", **step)
        sleep(0.6)  # a tap right behind a movement would be taken for the end of it

    def press(self, *keys: str) -> None:
        """Keys of a real keyboard."""
        self.send_all([message for key in keys for message in key_events(key)])

    def hold(self, x: float, y: float, seconds: float, to: tuple[float, float] | None = None) -> None:
        """A finger that stays for a while, then slides to another point, and is lifted."""
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        sleep(seconds)
        if to:
            self.send("Input.dispatchTouchEvent", type="touchMove", touchPoints=[{"x": to[0], "y": to[1]}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def named(self) -> list[tuple[str, str]]:
        """(role, name) of everything that a screen reader finds."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]
