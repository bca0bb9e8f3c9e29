"""Rungs of rasterize that are wrong in the ways of real ones are found out before they draw anything."""

import sys

import pytest
import torch

from rung.core.errors import OutOfMemory
from rung.core.types import Case, Device, Ladder, Rung, StepClass
from rung.core.value import FrozenDict
from rung.engine import planning
from rung.ops import LADDERS
from rung.ops.rasterize import Camera
from rung.ops.rasterize.self_check import splats
from rung.run import self_check
from rung.run.binding import Binder
from rung.run.journal import Journal
from tests.run import bad_rungs

CPU = Device("cpu", "cpu", "a processor", "x86_64", 2**34, software=FrozenDict({"torch": "0"}))
OPTIONS = FrozenDict({"degree": 0, "antialiased": False})
ROOT = str(bad_rungs.__file__).removesuffix("/tests/run/bad_rungs.py")


#: Rungs and what is said of them.
BAD = {"VANISHED": "color: ", "LOSES_GRADIENTS": "gradient of means: ", "NO_UNIT": "Cmma on inputs"}


def bad_rung(name):
    return Rung("rasterize", f"test.{name.lower()}", f"tests.run.bad_rungs:{name}")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """All are checked in one child."""
    folder, case = str(tmp_path_factory.mktemp("cache")), Case("rasterize", "f32", "f32", (256, 256, 256), OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNG_CACHE", folder)
        patch.setattr(sys, "path", [ROOT, *sys.path])
        self_check.prove(CPU, [(bad_rung(name), case) for name in BAD])
    return folder


@pytest.mark.parametrize(("name", "words"), BAD.items())
def test_a_wrong_rung_is_left_and_reported(name, words, cache, monkeypatch):
    monkeypatch.setenv("RUNG_CACHE", cache)
    bad, journal = bad_rung(name), Journal()
    ladder = Ladder("rasterize", (bad, LADDERS["rasterize"].rung("ref")))
    rasterizer = Binder(CPU, journal, ladders={"rasterize": ladder}).rasterizer(**OPTIONS)
    drawn = rasterizer(splats(20, 0), torch.eye(4), Camera(20, 20, 30.0, 30.0, 10.0, 10.0, 0))
    assert rasterizer.rung.name == "ref"
    assert float(drawn.alpha.max()) > 0.1
    (step,) = journal.report(FrozenDict(), FrozenDict()).steps
    assert (step.rung, step.step, step.to) == (bad.name, StepClass.BROKEN, "ref")
    assert words in step.reason


def test_a_full_memory_says_what_training_can_do_with_less():
    here = next(device for device in planning.proven_devices(lambda device: None) if device.kind == "cpu")
    rasterizer = Binder(here, Journal()).rasterizer(**OPTIONS)
    with pytest.raises(OutOfMemory) as caught:
        rasterizer.step_down(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert caught.value.ways_out[0] == "rung splat train SCENE --out DIR --max-splats 100000"
