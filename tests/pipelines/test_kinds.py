"""Pipelines of other kinds make what diffusers makes of them, in f32 to the last bit of a byte."""

import numpy as np
import pytest

from rung.engine import planning
from rung.pipelines.generate import Pipeline, Settings, call_arguments, to_frames
from tests.tiny_pipelines import saved

diffusers = pytest.importorskip("diffusers")

#: Settings by pipeline; those of the slow ones are alike to others.
KINDS = {
    "stable_diffusion": {"size": (32, 32)},
    "flux": {"size": (32, 32)},
    "wan": {"frames": 5, "size": (16, 16)},
    "pixart": {"size": (16, 16)},
    "ltx": {"frames": 9, "size": (32, 32)},
}
SLOW = ("pixart", "ltx")


@pytest.mark.parametrize("name", [pytest.param(k, marks=pytest.mark.slow) if k in SLOW else k for k in KINDS])
def test_other_kinds(name, tmp_path):
    folder = saved(name, tmp_path / name)
    cpu = next(one for one in planning.proven_devices(lambda device: None) if one.kind == "cpu")
    settings = Settings("a cat runs", steps=2, seed=3, guidance=3.0, **KINDS[name])
    (picture,) = Pipeline(folder, cpu, format="f32").make([settings])
    plain = diffusers.DiffusionPipeline.from_pretrained(folder)
    plain.set_progress_bar_config(disable=True)
    result = plain(**call_arguments(plain, settings, None))
    want = to_frames(result.frames if hasattr(result, "frames") else result.images)
    assert picture.frames.shape == (settings.frames or 1, settings.size[1], settings.size[0], 3)
    assert want.std() > 5
    assert np.abs(picture.frames.astype(int) - want).max() <= 1
    (coarse,) = Pipeline(folder, cpu, format="nf4").make([settings])
    assert 0 < np.abs(coarse.frames.astype(int) - picture.frames).mean() < 40
