"""A live view of splats in a browser, through viser: cameras, photographs, steps of training, a pause.

viser draws each splat in one color, so harmonics above the first do not show; a page (``viewers/page.py``) has them.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import io
import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rung.core.errors import SoftwareMissing, UsageError
from rung.core.text import count
from rung.models.card import View
from rung.splats.cameras import aside, frame
from rung.splats.cloud import Cloud
from rung.splats.poses import places, pose_of

if TYPE_CHECKING:
    from viser import ViserServer

#: The most cameras that are shown, one in so many, and pixels of the longer side of their pictures.
_CAMERAS, _THUMBNAIL = 200, 160
#: Seconds between two pictures of training.
_EVERY = 2.0
#: What the median scale is brought to: viser keeps covariances as float16, which end at 6e-8 and at 65504.
_MEDIAN, _MOST = 0.1, 250.0
_HELP = (
    "**View-dependent color is off here**: a splat has the same color from all sides. "
    "`rung splat export SRC page.html` makes a page where colors change with the view."
)


class Live:
    """A server with one cloud, which ``update`` replaces. Use in a ``with`` block, or ``close`` it.

    ``views`` are shown as frustums with their photographs, where these are there. ``training`` adds the pause. Raises
    ``SoftwareMissing`` without viser, ``UsageError`` for a port in use and an address that is not this machine's.
    """

    def __init__(
        self,
        views: Sequence[View],
        cloud: Cloud,
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        training: bool = False,
    ) -> None:
        need_viser()
        _check_free(host, port)
        import viser

        with contextlib.redirect_stdout(io.StringIO()):  # its own banner; stdout is for answers
            self.server: ViserServer = viser.ViserServer(host=host, port=port, label="rung", verbose=False)
        self.address = f"http://{'localhost' if host in ('127.0.0.1', '0.0.0.0', '::') else host}:{self._port(port)}"
        center, up, distance = frame(views, cloud)
        self.server.scene.set_up_direction(tuple(up))
        start = places(views[:1])[0] if views else center + distance * (up * 0.3 + aside(up))
        self.server.initial_camera.position, self.server.initial_camera.look_at = tuple(start), tuple(center)
        if views:  # its pictures are drawn with the window's angle, whatever angle they are asked for
            self.server.initial_camera.fov = _field(views[0])
        self.server.gui.add_markdown(_HELP)
        self.status = self.server.gui.add_markdown("")
        self.pause = self.server.gui.add_checkbox("pause", False) if training else None
        self._cameras: list[Any] = []
        self._due = 0.0
        self._frustums(views, 0.08 * distance)
        self.update(cloud)

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def paused(self) -> bool:
        """Return whether somebody asked training to wait, and still looks on: a closed browser holds nothing up."""
        return self.pause is not None and self.pause.value and bool(self.server.get_clients())

    def update(self, cloud: Cloud, step: int | None = None) -> None:
        """Shows these splats instead."""
        named = count(len(cloud.means), "splat")
        self.status.content = named if step is None else f"step {step:,} · {named}"
        if not len(cloud.means):
            return
        scale = _MEDIAN / max(float(np.median(cloud.scales)), 1e-12)
        self.server.scene.add_gaussian_splats(
            "/splats",
            cloud.means * np.float32(scale),
            covariances(cloud, scale),
            np.clip(cloud.tints, 0, 1),
            cloud.opacities[:, None],
            scale=1 / scale,
        )

    def follow(self, step: int, cloud: Callable[[], Cloud], stopped: Callable[[], bool]) -> float:
        """Between two steps of training: shows the splats now and then to whoever looks, and waits while paused.

        It takes a twentieth of the time at most; ``stopped`` ends a pause. Returns the seconds of pause, which are none
        of training.
        """
        begin = time.monotonic()
        if begin >= self._due and self.server.get_clients():
            self.update(cloud(), step)
            end = time.monotonic()
            self._due = end + max(_EVERY, 19 * (end - begin))
        begin = time.monotonic()
        while self.paused and not stopped():
            time.sleep(0.1)
        return time.monotonic() - begin

    def steps(self, names: Sequence[str], show: Callable[[int], Cloud]) -> None:
        """Adds a slider over clouds by index; the last is taken to be shown."""
        slider = self.server.gui.add_slider("step", 0, len(names) - 1, 1, len(names) - 1)
        name = self.server.gui.add_markdown(names[-1])
        moving = threading.Lock()

        @slider.on_update
        def _(_: Any) -> None:
            with moving:
                index = int(slider.value)
                self.update(show(index))
                name.content = names[index]

    def show_cameras(self, visible: bool) -> None:
        """Shows or hides the frustums and their photographs."""
        for each in self._cameras:
            each.visible = visible

    def close(self) -> None:
        """Ends the server."""
        with contextlib.redirect_stdout(io.StringIO()):
            self.server.stop()

    def _port(self, requested: int) -> int:
        """The port that was taken; raises ``UsageError`` where another program was quicker."""
        found = self.server.get_port()
        if requested not in (0, found):
            self.close()
            raise _in_use(requested)
        return found

    def _frustums(self, views: Sequence[View], size: float) -> None:
        for index, view in enumerate(views[:: len(views) // _CAMERAS + 1]):
            self._cameras.append(self._frustum(index, view, size))
        if not views:
            return
        box = self.server.gui.add_checkbox("cameras", True)
        box.on_update(lambda _: self.show_cameras(box.value))

    def _frustum(self, index: int, view: View, size: float) -> Any:
        from viser.transforms import SO3

        turn = pose_of(view)[:3, :3].T
        wxyz, position = SO3.from_matrix(turn).wxyz, places([view])[0]
        frustum = self.server.scene.add_camera_frustum(
            f"/cameras/{index}",
            _field(view),
            view.width / view.height,
            scale=size,
            thickness=0.02 * size,
            color=(213, 94, 0) if view.split == "test" else (0, 114, 178),
            image=thumbnail(view),
            wxyz=wxyz,
            position=position,
        )

        @frustum.on_click
        def _(event: Any) -> None:
            self.show_cameras(False)  # its photograph would stand before the splats
            event.client.camera.position = position
            event.client.camera.look_at = position + turn[:, 2]

        return frustum


def of_training(views: Sequence[View], cloud: Cloud, note: Callable[[str], None]) -> Live:
    """A view of splats in training, at port 8080 or, where that is in use, at a free one; ``note`` is told where."""
    try:
        live = Live(views, cloud, training=True)
    except UsageError as error:
        note(error.cause)
        live = Live(views, cloud, port=0, training=True)
    note(f"Open {live.address} to watch; view-dependent color is off there.")
    return live


def need_viser() -> None:
    """Raises ``SoftwareMissing`` without viser."""
    if importlib.util.find_spec("viser") is None:
        raise SoftwareMissing(
            "The live view is viser's, which is not installed.",
            ["it is in the extra rung[splats]"],
            ["pip install 'rung[splats]'"],
        )


def _check_free(host: str, port: int) -> None:
    """Raises ``UsageError`` where a server cannot listen there; viser would take the next port without a word."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except PermissionError as error:
        raise UsageError(f"Port {port} is not for everybody.", [], ["--port 8081"], code="port-unavailable") from error
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno != errno.EADDRINUSE:
            raise UsageError(
                f"{host} is no address of this machine.", [str(error)], ["leave --host out"], code="port-unavailable"
            ) from error
        raise _in_use(port) from error


def _in_use(port: int) -> UsageError:
    return UsageError(
        f"Port {port} is in use.",
        ["another program listens there"],
        [f"--port {port + 1 if port < 65535 else 8080}"],
        code="port-unavailable",
    )


def _field(view: View) -> float:
    """The angle from top to bottom, in radians."""
    return 2 * math.atan(0.5 * view.height / view.fy)


def covariances(cloud: Cloud, scale: float) -> np.ndarray:
    """Return covariances [N, 3, 3] of the cloud enlarged by ``scale``."""
    w, x, y, z = cloud.units.T
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]
    rows += [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]
    rows += [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
    turns = np.stack(rows, axis=1).reshape(-1, 3, 3)
    axes = turns * np.minimum(cloud.scales * np.float32(scale), _MOST)[:, None, :]
    result: np.ndarray = axes @ axes.swapaxes(1, 2)
    return result


def thumbnail(view: View) -> np.ndarray | None:
    """Return the photograph, small; None where it is not there any more."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(Path(view.image)) as picture:
            picture.draft("RGB", (2 * _THUMBNAIL, 2 * _THUMBNAIL))
            small = picture.convert("RGB")
        small.thumbnail((_THUMBNAIL, _THUMBNAIL))
        return np.array(small)
    except (OSError, UnidentifiedImageError):
        return None
