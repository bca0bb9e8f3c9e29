"""The page that holds splats: what is packed, and in headless Chromium what it draws against the renderer."""

import base64
import json
import math
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from rung.measure.metrics import psnr
from rung.models.card import View
from rung.splats import Cloud
from rung.splats.cameras import looking
from rung.splats.export import page_title
from rung.splats.render import draw
from rung.splats.viewers.page import page
from tests.splats.browser import CHROMIUM, Browser

chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: what the page draws was not run")


def cloud(number=3000, degree=3):
    """Splats of every shape around the origin, most of them seen through others, with harmonics that show."""
    rng = np.random.default_rng(1)
    harmonics = rng.standard_normal((number, (degree + 1) ** 2, 3)) * 0.15
    harmonics[:, 0] *= 6
    return Cloud(
        (rng.standard_normal((number, 3)) * 0.8).astype(np.float32),
        rng.standard_normal((number, 4)).astype(np.float32),
        rng.uniform(-5, -2, (number, 3)).astype(np.float32),
        rng.standard_normal(number).astype(np.float32) * 2,
        harmonics.astype(np.float32),
    )


def camera(name="</script>__VIEWER__", **changed):
    facts = {"width": 400, "height": 300, "fx": 390.0, "fy": 410.0, "cx": 190.0, "cy": 160.0, **changed}
    pose = looking(np.array([1.0, -1.5, -2.5]), np.zeros(3), np.array([0.1, -1.0, 0.0]))
    return View(name, "", pose=pose, **facts)


def script(html, name):
    return re.search(rf'<script type="[a-z/]+" id="{name}">(.*?)</script>', html.decode()).group(1)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_what_is_packed_is_the_cloud(degree):
    scene = cloud(200, degree)
    html = page(scene, [camera()], title="<x>")
    assert b"<title>&lt;x&gt;</title>" in html
    assert b"<b>&lt;x&gt;</b>" in html, "the caption"
    facts = json.loads(script(html, "scene"))
    assert facts["cameras"][0]["name"] == "</script>__VIEWER__"
    data = zlib.decompress(base64.b64decode(script(html, "splats")))
    assert len(data) == 200 * (12 + 2 * 11 + 3 * facts["terms"])
    means = np.frombuffer(data, "<f4", 600).reshape(3, 200).T
    assert np.array_equal(means, scene.means)
    words = np.frombuffer(data, "<u2", 2200, 2400).reshape(11, 200)
    low, step = np.array(facts["columns"]).T
    columns = low[:, None] + step[:, None] * words
    assert np.abs(columns[:3].T - scene.log_scales).max() < 1e-4
    assert np.abs(columns[7] - scene.opacities).max() < 1e-4
    roots = np.frombuffer(data, np.int8, offset=2400 + 4400).reshape(facts["terms"], 3, 200).astype(float) / 127
    largest = np.repeat(facts["largest"], [3, 5, 7])[: facts["terms"], None, None]
    back = (roots * np.abs(roots) * largest).transpose(2, 0, 1)
    assert np.abs(back - scene.harmonics[:, 1:]).max(initial=0) < 0.012


def test_a_page_asks_the_network_for_nothing():
    html = page(cloud(10)).decode()
    assert "default-src 'none'" in html
    assert not re.search(r"(src|href)=[\"'](?!data:)|@import|https?://", html)


@pytest.fixture
def browser(tmp_path):
    with Browser(tmp_path) as found:
        yield found


READY = 'document.documentElement?.dataset.ready === "true"'


@chromium
@pytest.mark.slow
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_the_page_draws_what_the_renderer_draws(degree, tmp_path, browser):
    scene, views = cloud(degree=degree), [camera(), camera(width=300, height=320, fx=200.0, fy=200.0, cx=150.0)]
    ground = (0.2, 0.4, 0.1)
    (tmp_path / "a.html").write_bytes(page(scene, views, background=ground, antialiased=degree == 1))
    for index, view in enumerate(views):
        browser.open(f"file://{tmp_path}/a.html?{index}#camera={index}")
        browser.wait(READY)
        shown = browser.picture(view.width, view.height)
        like = psnr(shown, draw(scene, view, ground, antialiased=degree == 1))
        assert like > 45
        assert like > psnr(shown, draw(scene, view, ground, antialiased=degree != 1)) + 3
        if degree:
            assert psnr(shown, draw(scene, view, ground, degree=degree - 1, antialiased=degree == 1)) < 40


@chromium
@pytest.mark.slow
def test_a_page_without_cameras_is_turned_by_the_mouse_and_moved_by_keys(tmp_path, browser):
    (tmp_path / "a.html").write_bytes(page(cloud(300)))
    browser.open(f"file://{tmp_path}/a.html")
    browser.wait(READY)
    first = browser.value("String(camera().pose)")
    assert browser.value("document.querySelector('#cameras').hidden")
    middle = browser.value("[innerWidth / 2, innerHeight / 2]")
    browser.press("mousePressed", x=middle[0], y=middle[1], clickCount=1)
    browser.press("mouseMoved", x=middle[0] + 60, y=middle[1] + 10)
    browser.press("mouseReleased", x=middle[0] + 60, y=middle[1] + 10, clickCount=1)
    browser.wait(f"String(camera().pose) !== {json.dumps(first)}")
    assert browser.value("free.target.every((value, axis) => Math.abs(value - scene.center[axis]) < 1e-6)")
    second = browser.value("free.eye")
    browser.value("dispatchEvent(new KeyboardEvent('keydown', {code: 'KeyW'}))")
    browser.wait(f"Math.hypot(...plus(free.eye, {second}, -1)) > 0.01")
    browser.value("dispatchEvent(new KeyboardEvent('keyup', {code: 'KeyW'}))")
    assert math.isfinite(sum(browser.value("camera().pose")))
    assert browser.picture(400, 300).max() > 0


@pytest.mark.parametrize(("path", "title"), [("garden/page.html", "garden"), ("garden/roses.html", "roses")])
def test_a_page_is_titled_after_its_scene(path, title):
    assert page_title(Path(path)) == title
