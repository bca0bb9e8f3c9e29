"""Chromium without a window, driven over its own pipe (the DevTools protocol), as a person would: keys and a mouse."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Seconds until something that is awaited must be there.
PATIENCE = 15.0
_FLAGS = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--mute-audio",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--password-store=basic",
]
#: Names of keys: code and the number that Windows gave them.
_KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "Backspace": 8, "ArrowUp": 38, "ArrowDown": 40}
_MODIFIERS = {"Alt": 1, "Ctrl": 2, "Shift": 8}


def executable() -> str | None:
    """The program, where it is installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """A running Chromium. Its profile is new: nothing of another test is in it."""

    def __init__(self, folder: Path) -> None:
        to_browser, self._out = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in os.pipe())
        self._in, from_browser = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in os.pipe())
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        program = executable()
        assert program is not None
        command = ["bash", "-c", shell, "bash", program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
        with open(folder / "said", "wb") as said:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, pass_fds=(to_browser, from_browser)
            )
        os.close(to_browser)
        os.close(from_browser)
        self._count = 0
        self._replies: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        rest = b""
        while data := os.read(self._in, 2**20):
            *messages, rest = (rest + data).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._replies.pop(message["id"]).put(message)
                elif tab := self._tabs.get(message.get("sessionId", "")):
                    tab.take(message["method"], message["params"])

    def call(self, method: str, params: dict[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """Call a method of the protocol; return what it answers."""
        self._count += 1
        number, reply = self._count, queue.Queue[dict[str, Any]]()
        self._replies[number] = reply
        message = {
            "id": number,
            "method": method,
            "params": params or {},
            **({"sessionId": session} if session else {}),
        }
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answer = reply.get(timeout=60)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    @contextlib.contextmanager
    def tab(self, url: str, width: int = 1200, height: int = 800, dark: bool = False) -> Iterator[Tab]:
        """A tab in a profile of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        try:
            yield self.another_tab(context, url, width, height, dark)
        finally:
            self.call("Target.disposeBrowserContext", {"browserContextId": context})

    def another_tab(self, context: str, url: str, width: int = 1200, height: int = 800, dark: bool = False) -> Tab:
        """A tab of a profile that has others."""
        target = self.call("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = self._tabs[session] = Tab(self, session, context)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.resize(width, height)
        tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.go(url)
        return tab

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError, AssertionError):
            self.call("Browser.close")
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Tab:
    """A page in a browser: what it shows and loads, and the keyboard and mouse of whoever uses it."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser, self._session, self.context = browser, session, context
        #: What the console says that is an error or a warning, and what was thrown.
        self.problems: list[str] = []
        #: Whether a test brings problems about: a browser reports statuses above 399, too.
        self.expects_problems = False
        #: Addresses that were loaded, and bytes of each as the page has them.
        self.requests: list[str] = []
        self.sizes: dict[str, int] = {}

    def take(self, method: str, params: dict[str, Any]) -> None:
        """Note an event."""
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(each.get("value", each.get("description"))) for each in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Network.dataReceived":
            self.sizes[params["requestId"]] = self.sizes.get(params["requestId"], 0) + params["dataLength"]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol on this tab."""
        return self._browser.call(method, params, self._session)

    def go(self, url: str) -> None:
        """Load an address and wait until the page has drawn itself."""
        self.call("Page.navigate", url=url)
        self.wait("document.querySelector('#message, .fleet') !== null")

    def reload(self) -> None:
        """Load the page again."""
        self.js("window.isOld = true")
        self.call("Page.reload")
        self.wait("!window.isOld && document.getElementById('message') !== null")

    def resize(self, width: int, height: int) -> None:
        """Give the page another size, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def js(self, expression: str) -> Any:
        """The value of an expression on the page; of a promise, what it resolves to."""
        options = {"awaitPromise": True, "returnByValue": True, "allowUnsafeEvalBlockedByCSP": False}
        answer = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = PATIENCE) -> Any:
        """Wait until an expression is true; return its value."""
        until = time.monotonic() + seconds
        while True:
            answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
            value = answer["result"].get("value")
            if value and "exceptionDetails" not in answer:
                return value
            assert time.monotonic() < until, f"{expression}\n{self.text()}\n{self.problems}"
            time.sleep(0.02)

    def text(self) -> str:
        """Return the text of the page."""
        return str(self.js("document.body.innerText"))

    def wait_text(self, text: str, seconds: float = PATIENCE) -> None:
        """Wait until a text stands on the page."""
        self.wait(f"document.body.innerText.includes({json.dumps(text)})", seconds)

    def find(self, name: str, number: int = 0) -> str:
        """An expression for the element that a person calls ``name``: its label or its words; -1 is the last one."""
        return f"""(() => {{
          const name = {json.dumps(name)};
          const label = (one) => one.getAttribute("aria-label") ?? one.labels?.[0]?.innerText;
          const called = (one) => (label(one) ?? one.innerText).trim();
          const scope = document.querySelector("dialog[open]") ?? document;
          const all = [...scope.querySelectorAll("button, a, input, textarea, select, summary")];
          return all.filter((one) => one.checkVisibility({{visibilityProperty: true}}) && (called(one) === name
            || called(one).startsWith(name + " ("))).at({number});
        }})()"""

    def click(self, name: str, number: int = 0) -> None:
        """Click in the middle of what a person calls ``name``."""
        middle = self.wait(f"""(() => {{
          const found = {self.find(name, number)};
          if (!found || found.disabled) return null;
          found.scrollIntoView({{block: "nearest"}});
          const box = found.getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        at = {"x": middle[0], "y": middle[1]}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.call("Input.insertText", text=text)

    def press(self, keys: str) -> None:
        """Press keys at once: ``Enter``, ``Shift+Enter``, ``Ctrl+K``."""
        *pressed, key = keys.split("+")
        modifiers = sum(_MODIFIERS[each] for each in pressed)
        code = _KEYS.get(key, ord(key.upper()[0]))
        event: dict[str, Any] = {"key": key if len(key) > 1 else key.lower(), "windowsVirtualKeyCode": code}
        if keys == "Ctrl+a":
            event["commands"] = ["selectAll"]
        if key == "Enter" or (len(key) == 1 and "Ctrl" not in pressed):
            event["text"] = "\r" if key == "Enter" else key
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, modifiers=modifiers, **event)

    def focus(self) -> str:
        """Return the accessible name of the element that has the focus."""
        return str(
            self.js(
                "(({activeElement: one}) => one.getAttribute('aria-label') ?? one.labels?.[0]?.innerText"
                " ?? one.innerText)(document)"
            )
        )

    def say(self, text: str) -> None:
        """Write a message and send it."""
        self.js("document.getElementById('message').focus()")
        self.type(text)
        self.press("Enter")

    def answer(self) -> str:
        """The last answer when it is whole and kept: then it is announced."""
        self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")  # drawn by then
        self.wait(
            "document.querySelector('main[aria-busy=false] .turn:last-child.answer') !== null"
            " && document.querySelector('[role=status].unseen').innerText !== 'Waiting for the answer'"
        )
        return str(self.js("[...document.querySelectorAll('.answer .prose')].at(-1)?.innerText ?? ''"))

    def picture(self, path: Path) -> None:
        """Write what is seen as a PNG."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
