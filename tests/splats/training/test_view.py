"""A run that is looked at in the browser, with a pause and a browser that is closed in the middle."""

import importlib.util
import time
from types import SimpleNamespace

import pytest

from rung.core.errors import SoftwareMissing
from rung.splats.training.run import ProgressListener, train
from rung.splats.training.settings import Settings
from rung.splats.viewers import live
from rung.splats.viewers.live import Live
from tests.splats.training import tiny


def settings(scene):
    return Settings(str(scene), steps=12, max_splats=100, threads=1, eval_split=4)


@pytest.mark.skipif(importlib.util.find_spec("viser") is None, reason="viser is not installed")
def test_a_run_that_is_looked_at_is_the_same_run_and_waits_for_nobody_who_has_gone(tmp_path, monkeypatch):
    from viser import ViserServer

    scene, notes, shown, calls = tiny.make(tmp_path / "scene"), [], [], []

    def clients(server):
        """A browser that is closed a while after the pause was asked for."""
        calls.append(server)
        return {0: None} if len(calls) < 30 else {}

    def update(self, cloud, step=None):
        shown.append(step)
        if step is not None:
            self.pause.value = True

    monkeypatch.setattr(ViserServer, "get_clients", clients)
    monkeypatch.setattr(Live, "update", update)
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: None))
    done = train(settings(scene), tmp_path / "seen", listener=ProgressListener(note=notes.append), view=True)
    train(settings(scene), tmp_path / "alone")
    assert done.steps == 12
    assert shown == [None, 1]  # at the beginning, then once before it was paused and left
    assert len(calls) >= 30
    assert any("to watch" in note for note in notes)
    assert (tmp_path / "seen" / "splats.ply").read_bytes() == (tmp_path / "alone" / "splats.ply").read_bytes()


def test_without_viser_nothing_is_begun(tmp_path, monkeypatch):
    scene = tiny.make(tmp_path / "scene")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "viser" else find(name, *more))
    with pytest.raises(SoftwareMissing, match="viser"):
        train(settings(scene), tmp_path / "out", view=True)
    assert not (tmp_path / "out").exists()
