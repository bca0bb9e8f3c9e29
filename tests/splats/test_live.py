"""The live view: what it refuses, what it sends, and in headless Chromium what it shows against the renderer."""

import importlib.util
import math
import socket
import threading
import time

import numpy as np
import pytest
import torch

from rung.core.errors import SoftwareMissing, UsageError
from rung.measure.metrics import psnr
from rung.models.card import View
from rung.ops.rasterize.projecting import rotations
from rung.splats import Cloud
from rung.splats.cameras import looking
from rung.splats.render import draw
from rung.splats.trained import stages
from rung.splats.viewers import live
from rung.splats.viewers.live import Live
from tests.splats.browser import CHROMIUM, Browser

needs_viser = pytest.mark.skipif(importlib.util.find_spec("viser") is None, reason="viser is not installed")
chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: what viser draws was not run")


def cloud(number=1500, small=1.0):
    rng = np.random.default_rng(2)
    return Cloud(
        (rng.standard_normal((number, 3)) * 0.8 * small).astype(np.float32),
        rng.standard_normal((number, 4)).astype(np.float32),
        (rng.uniform(-5, -2, (number, 3)) + math.log(small)).astype(np.float32),
        rng.standard_normal(number).astype(np.float32) * 2,
        (rng.standard_normal((number, 4, 3)) * 0.3).astype(np.float32),
    )


def camera(small=1.0, name="a", image=""):
    pose = looking(np.array([1.0, -1.5, -2.5]) * small, np.zeros(3), np.array([0.0, -1.0, 0.0]))
    return View(name, image, 400, 300, 350.0, 350.0, 200.0, 150.0, pose)


def test_covariances_are_of_turned_axes():
    scene = cloud(20)
    turns = rotations(torch.from_numpy(scene.quats.astype(np.float64)))
    axes = turns * torch.from_numpy(scene.scales * 3.0)[:, None, :]
    assert np.allclose(live.covariances(scene, 3.0), (axes @ axes.mT).numpy(), rtol=1e-4, atol=1e-9)


def test_a_photograph_is_shown_small_or_not_at_all(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("L", (1000, 500), 77).save(tmp_path / "a.jpg")
    assert live.thumbnail(camera(image=str(tmp_path / "a.jpg"))).shape == (80, 160, 3)
    assert live.thumbnail(camera(image=str(tmp_path / "b.jpg"))) is None
    (tmp_path / "c.jpg").write_bytes(b"nothing")
    assert live.thumbnail(camera(image=str(tmp_path / "c.jpg"))) is None


def test_without_viser_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SoftwareMissing, match=r"rung\[splats\]"):
        Live((), cloud())


def test_steps_are_in_the_order_of_their_numbers(tmp_path):
    names = [f"splats-{step:06d}.ply" for step in (900, 999_999, 1_000_000, 12_000_000)]
    (tmp_path / "exports").mkdir()
    for name in names:
        (tmp_path / "exports" / name).touch()
    assert [file.name for file in stages([tmp_path])] == [*names, "splats.ply"]


@needs_viser
def test_a_port_in_use_is_said_and_no_other_is_taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port} is in use"):
            Live((), cloud(), port=port)


@needs_viser
@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-name.invalid"])
def test_an_address_of_another_machine_is_refused(host, monkeypatch):
    if host.endswith("invalid"):  # the network is not asked

        def unknown(*arguments, **more):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UsageError, match="no address of this machine"):
        Live((), cloud(), host=host)


@needs_viser
def test_steps_follow_a_slider_and_nobody_is_waited_for_who_does_not_look(capsys):
    Live((), cloud(3), port=0).close()
    clouds = [cloud(5), cloud(7)]
    with Live([camera()], clouds[1], port=0, training=True) as shown:
        assert shown.address.startswith("http://localhost:")
        assert not shown.paused
        shown.pause.value = True
        assert not shown.paused  # no browser is open
        shown.update(clouds[0], 1200)
        assert shown.status.content == "step 1,200 · 5 splats"
        shown.update(cloud(0), 1300)
        assert "0 splats" in shown.status.content
        indices = []
        shown.steps(["a.ply", "b.ply"], lambda index: indices.append(index) or clouds[index])
        slider = next(each for each in shown.server.gui._gui_input_handle_from_uuid.values() if each.label == "step")
        slider.value = 0
        for callback in slider._impl.update_cb:
            callback(None)
        assert 0 in indices
        assert shown.status.content == "5 splats"
    assert capsys.readouterr().out == ""


@needs_viser
@chromium
@pytest.mark.slow
@pytest.mark.parametrize("small", [1.0, 0.01])
def test_viser_shows_what_the_renderer_draws_in_degree_0(small, tmp_path):
    from viser.transforms import SO3

    scene, view = cloud(small=small), camera(small)
    with Live([view], scene, port=0) as shown, Browser(tmp_path) as browser:
        arrived = threading.Event()
        shown.server.on_client_connect(lambda client: arrived.set())
        browser.open(shown.address)
        assert arrived.wait(120)
        client = next(iter(shown.server.get_clients().values()))
        pose = np.array(view.pose).reshape(3, 4)
        turn, position = SO3.from_matrix(pose[:, :3].T).wxyz, -pose[:, :3].T @ pose[:, 3]
        shown.show_cameras(False)
        options = {"wxyz": turn, "position": position, "fov": 2 * math.atan(150 / 350), "timeout": 120}
        expected, end = draw(scene, view, (1.0, 1.0, 1.0), degree=0), time.monotonic() + 120
        picture = client.get_render(300, 400, **options)
        while psnr(picture, expected) < 25 and time.monotonic() < end:  # splats and angle are still on their way
            picture = client.get_render(300, 400, **options)
    print(small, psnr(picture, expected))
    assert psnr(picture, expected) >= 25
    assert psnr(picture, expected) > psnr(picture, draw(scene, view, (1.0, 1.0, 1.0))) + 1
