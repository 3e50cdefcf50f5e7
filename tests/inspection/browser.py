"""A real browser without a window, driven through its debugging pipe: no driver and no library is needed."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # which root needs
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # No other name leads anywhere: what needs the network fails, and is seen.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost",
    "--use-fake-device-for-media-stream",  # a camera that shows moving colors
    "--use-fake-ui-for-media-stream",  # which pages may use
    "--window-size=1240,900",
    "--remote-debugging-pipe",
)


def find():
    """The path of a browser, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page. Use as a context.

    Args:
        profile: An empty directory.

    Attributes:
        problems: Errors in the console of the page, exceptions, and failed requests.
        requests: URLs that the page requested.
    """

    def __init__(self, profile):
        self.problems, self.requests = [], []
        self._number, self._buffer, self._answers = 0, b"", {}
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        # The browser reads file 3 and writes file 4.
        command = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        arguments = [find(), *FLAGS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            ["bash", "-c", command, "browser", str(to_child), str(from_child), *arguments],
            pass_fds=(to_child, from_child),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)

    def __enter__(self):
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def send(self, method, **parameters):
        """Calls a method of the debugging protocol and returns its response."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while self._number not in self._answers:
            self._receive(deadline)
        answer = self._answers.pop(self._number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _receive(self, deadline):
        ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
        chunk = os.read(self._read, 1 << 20) if ready else b""
        if not chunk:
            raise RuntimeError("The browser ended, or does not respond.")
        *messages, self._buffer = (self._buffer + chunk).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._notice(message["method"], message["params"])

    def _notice(self, method, parameters):
        if method == "Runtime.exceptionThrown":
            self.problems.append(parameters["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(parameters["args"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def open(self, url, ready):
        """Opens a URL and waits until the expression `ready` is true on the page."""
        self.send("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && Boolean({ready})")

    def wait(self, expression):
        """Waits until an expression is true on the page."""
        deadline = time.monotonic() + 60
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{expression} did not become true. Problems: {self.problems}")
            time.sleep(0.05)

    def evaluate(self, expression):
        """The value of a JavaScript expression on the page."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description"))
        return result["result"].get("value")

    def look(self, scheme, width):
        """Prefer the color scheme "light" or "dark", at a width in pixels."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def press(self, key, code):
        """Presses and releases a key, as a user does."""
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def click(self, selector):
        """Clicks the middle of an element."""
        x, y = self.evaluate(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, selector=None):
        """The visible part of the page, or an element wherever it is: a PNG."""
        clip = {}
        if selector:
            x, y, width, height = self.evaluate(
                f"(() => {{ const r = document.querySelector({selector!r}).getBoundingClientRect();"
                " return [r.x + scrollX, r.y + scrollY, r.width, r.height]; })()"
            )
            clip = {
                "clip": {"x": x, "y": y, "width": width, "height": height, "scale": 1},
                "captureBeyondViewport": True,
            }
        return base64.b64decode(self.send("Page.captureScreenshot", format="png", **clip)["data"])
