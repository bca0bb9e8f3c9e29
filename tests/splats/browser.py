"""Chromium without a window, driven over its debugging pipe: opens a page, evaluates, takes a picture."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CHROMIUM = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)
_FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu-sandbox", "--use-gl=angle", "--use-angle=swiftshader"]
_FLAGS += ["--enable-unsafe-swiftshader", "--force-color-profile=srgb", "--force-device-scale-factor=1"]
_FLAGS += ["--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe"]


class Browser:
    """One tab of a browser that ends with the block."""

    def __init__(self, folder: Path, width: int = 800, height: int = 600) -> None:
        hears, self._say = os.pipe()
        self._hear, says = os.pipe()
        flags = [*_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        command = ["bash", "-c", f'exec "$@" 3<&{hears} 4>&{says}', "bash", str(CHROMIUM), *flags]
        with open(folder / "chromium.log", "wb") as log:
            self._process = subprocess.Popen(command, pass_fds=(hears, says), stdout=log, stderr=log)
        os.close(hears)
        os.close(says)
        self._number, self._rest, self._session = 0, b"", {}
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._say)
        os.close(self._hear)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._say, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                got = os.read(self._hear, 1 << 20)
                assert got, "the browser ended"
                self._rest += got
            line, self._rest = self._rest.split(b"\0", 1)
            answer = json.loads(line)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, address: str) -> None:
        """Goes to an address."""
        self._ask("Page.navigate", url=address)

    def value(self, expression: str) -> Any:
        """Return the value of an expression on the page."""
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 120.0) -> None:
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, (
                f"{expression} did not come true; the page says {self.value('document.body.innerText')}"
            )
            time.sleep(0.1)

    def press(self, kind: str, **parameters: Any) -> None:
        """A mouse event."""
        self._ask("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, **parameters)

    def picture(self, width: int, height: int) -> np.ndarray:
        """uint8 [height, width, 3] of the page's upper left corner."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        data = base64.b64decode(self._ask("Page.captureScreenshot", format="png", clip=clip)["data"])
        with Image.open(io.BytesIO(data)) as picture:
            return np.array(picture.convert("RGB"))
