"""Before the first step a real view is held against ``ref``: a rung that passes its self-check can still be wrong."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from rung.nn.quantized import binding
from rung.ops.rasterize import numba_tile
from rung.run.journal import Journal
from rung.splats.training.run import train
from rung.splats.training.settings import Settings
from tests.splats.training import tiny

HONEST = numba_tile.Tiles.apply


def vanishing(self, splats, pose, camera, screen=None):
    kept = (torch.arange(len(splats.means)) % 3 > 0).float()
    return HONEST(self, splats._replace(opacities=splats.opacities * kept), pose, camera, screen)


def failing_on_the_way_back(self, splats, pose, camera, screen=None):
    drawn = HONEST(self, splats, pose, camera, screen)
    if drawn.color.requires_grad:
        drawn.color.register_hook(raise_as_brush)
    return drawn


def raise_as_brush(slope):
    raise RuntimeError("Cmma on inputs Float(F16) and outputs Float(F32) with shape m=16, n=16, k=16 not supported.")


@pytest.mark.parametrize(
    ("wrong", "words"), [(vanishing, "pixels of a view"), (failing_on_the_way_back, "no matrix unit of that shape")]
)
def test_a_rung_that_is_wrong_on_a_real_view_is_left_before_the_first_step(wrong, words, tmp_path, monkeypatch):
    monkeypatch.setattr(binding, "journal", Journal())
    binding.rasterizer_of.cache_clear()
    monkeypatch.setattr(numba_tile.Tiles, "apply", wrong)
    scene = tiny.make(tmp_path / "scene")
    settings = Settings(str(scene), steps=2, max_splats=60, threads=1, eval_split=4)
    done = train(settings, tmp_path / "run")
    binding.rasterizer_of.cache_clear()
    step, *more = done.metrics["report"]["steps"]
    assert not more
    assert (step["rung"], step["to"]) == ("numba.tile", "torch.tile")
    assert words in step["reason"]


_FIRST = """
import json, sys
from pathlib import Path
from rung.kernels.cpu.compiled import Kernel
from rung.splats.training.run import train
from rung.splats.training.settings import Settings

compiled, found = Kernel.compile, {}

def noted(self):
    made = compiled(self)
    found[self.name.partition(":")[2]] = bool(made.cache_hits)
    return made

Kernel.compile = noted
train(Settings(sys.argv[1], steps=2, max_splats=60, threads=1, format="f32+sh16"), Path(sys.argv[2]))
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_first_run_of_a_machine_compiles_nothing_in_its_own_process(tmp_path):
    """LLVM would take tens of MB there, which the plan does not count; so it would where kernels are gone from the disk
    and proofs are not, as after an installation anew."""
    scene, cache = tiny.make(tmp_path / "scene"), tmp_path / "cache"
    for run in ("first", "anew"):
        call = [sys.executable, "-c", _FIRST, str(scene), str(tmp_path / run)]
        done = subprocess.run(
            call, env=os.environ | {"RUNG_CACHE": str(cache)}, capture_output=True, text=True, check=False
        )
        assert not done.returncode, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert {"enter", "step", "compare", "back", "shade_back", "learn", "project_back", "blame"} <= set(found)
        assert [name for name, loaded in found.items() if not loaded] == []
        shutil.rmtree(cache / "kernels")
