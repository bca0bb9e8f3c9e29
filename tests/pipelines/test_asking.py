"""Frames and sizes that a pipeline refuses, or rounds without an error: refused, with the nearest that it makes."""

import json
import shutil

import pytest

from rung.core.errors import UsageError
from rung.engine import planning
from rung.hub.diffusers.pipelines import Folder
from rung.pipelines import validate
from rung.pipelines.generate import Pipeline, Settings
from tests.tiny_pipelines import saved

diffusers = pytest.importorskip("diffusers")


@pytest.fixture(scope="module")
def rehearsing(tmp_path_factory):
    """A pipeline of that name that rehearses, whose configurations have been changed like that."""
    path, cpu = tmp_path_factory.mktemp("asked"), planning.this_processor()

    def rehearse(name, **changes):
        if not (path / name).exists():
            saved(name, path / name)
        folder = path / "_".join([name, *changes])
        if not folder.exists():
            shutil.copytree(path / name, folder)
            for part, change in changes.items():
                config = folder / part / "config.json"
                config.write_text(json.dumps(json.loads(config.read_text()) | change))
        return Pipeline(Folder(folder), cpu)

    return rehearse


#: As the autoencoders of most real pipelines, which make 8 x 8 pixels of each latent.
BY_8 = {
    "block_out_channels": [32] * 4,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}
#: The pipeline, changes of its configurations, what is asked for, what is said of that, and the ways out.
REFUSED = {
    "positions that there are not": (
        "latte", {}, {"frames": 3, "size": (16, 16)}, "transformer: video_length is 4", ["--frames 4", "--frames 1"],
    ),
    "far more than there are": (
        "latte", {}, {"frames": 40, "size": (16, 16)}, "transformer: video_length is 4", ["--frames 4"],
    ),
    "by default more than there are": (
        "latte", {}, {"size": (16, 16)}, "transformer: video_length is 4", ["--frames 4"],
    ),
    "a size that is checked": (
        "latte", {}, {"frames": 4, "size": (17, 16)}, "multiples of 8", ["--size 16x16", "--size 24x16"],
    ),
    "half a patch": (
        "latte", {"vae": BY_8}, {"frames": 4, "size": (72, 64)}, "multiples of 16", ["--size 64x64", "--size 80x64"],
    ),
    "frames and size": (
        "latte", {}, {"frames": 3, "size": (17, 16)}, "multiples of 8",
        ["--frames 4 --size 16x16", "--frames 1 --size 16x16"],
    ),
    "pixels of UNets": ("stable_diffusion", {}, {"size": (30, 32)}, "multiples of 8", ["--size 24x32", "--size 32x32"]),
    "pixels of PixArt": ("pixart", {}, {"size": (20, 16)}, "multiples of 8", ["--size 16x16", "--size 24x16"]),
    "pixels that are rounded": (
        "flux", {}, {"size": (34, 32)}, "it makes 32x32, without an error", ["--size 32x32", "--size 40x32"],
    ),
    "frames that are rounded": (
        "wan", {}, {"frames": 6, "size": (16, 16)}, "4k + 1: 5, 9, 13", ["--frames 5", "--frames 9"],
    ),
    "pixels that Wan checks": (
        "wan", {}, {"frames": 5, "size": (24, 16)}, "multiples of 16", ["--size 16x16", "--size 32x16"],
    ),
    "pixels that Wan rounds": (
        "wan", {"transformer": {"patch_size": [1, 4, 4]}}, {"frames": 5, "size": (48, 32)}, "multiples of 32",
        ["--size 32x32", "--size 64x32"],
    ),
    "a side longer than the positions": ("wan", {}, {"frames": 1, "size": (528, 32)}, "", ["--size 512x32"]),
    "frames that LTX leaves out": (
        "ltx", {}, {"frames": 10, "size": (32, 32)}, "4k + 1: 9, 13, 17", ["--frames 9", "--frames 13"],
    ),
    "pixels of LTX": ("ltx", {}, {"frames": 9, "size": (40, 32)}, "multiples of 32", ["--size 32x32", "--size 64x32"]),
}  # fmt: skip


#: Alike to others.
SLOW = ("far more than there are", "pixels of PixArt", "pixels that Wan checks", "pixels that Wan rounds")


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in REFUSED])
def test_what_is_not_made_as_asked_is_refused(rehearsing, capfd, case):
    name, changes, wish, said, ways = REFUSED[case]
    pipeline = rehearsing(name, **changes)
    capfd.readouterr()
    with pytest.raises(UsageError) as refused:
        pipeline.rehearse([Settings("a cat", **wish)])
    error = refused.value
    assert error.cause.startswith(type(pipeline.built).__name__)
    assert said in " ".join(error.facts)
    assert len(error.ways_out) == len(ways)
    assert all(found.startswith(way) for found, way in zip(error.ways_out, ways, strict=True)), error.ways_out
    assert not capfd.readouterr().err  # nobody is told of settings that were only tried


def test_a_prompt_that_one_of_two_encoders_reads_whole(rehearsing):
    pipeline = rehearsing("flux")
    assert pipeline.rehearse([Settings("a cat " * 60, size=(32, 32))])  # CLIP reads 77 tokens of it
    with pytest.raises(UsageError, match="The prompt has 601 tokens, and FluxPipeline reads 512"):
        pipeline.rehearse([Settings("a cat " * 300, size=(32, 32))])


def test_a_negative_prompt_that_is_not_used_may_be_long(rehearsing):
    settings = Settings("a cat", frames=4, size=(16, 16), negative="dog " * 200, guidance=1.0)
    assert rehearsing("latte").rehearse([settings])


def test_another_setting_that_is_refused_is_not_called_a_size(rehearsing, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise ValueError("no guidance like that")

    monkeypatch.setattr(diffusers.LattePipeline, "check_inputs", refuse)
    with pytest.raises(UsageError, match="refuses this") as refused:
        rehearsing("latte").rehearse([Settings("a cat", frames=4, size=(16, 16), guidance=3.0)])
    assert refused.value.facts == ("no guidance like that",)
    assert refused.value.ways_out[0] == "leave out --guidance"


def test_more_pixels_than_memory_are_refused_before_there_is_noise(rehearsing, monkeypatch):
    monkeypatch.setattr(diffusers.LattePipeline, "__call__", lambda self, prompt, video_length=16: 1 / 0)
    with pytest.raises(UsageError, match=r"1,000,000,000 frames of 16x16 do not fit this machine") as refused:
        rehearsing("latte").rehearse([Settings("a cat", frames=10**9, size=(16, 16))])
    assert "2861.0 GB" in refused.value.facts[0]


def test_the_pipelines_own_size_counts(rehearsing, monkeypatch):
    monkeypatch.setattr(planning, "machine_memory", lambda: 2**30)
    with pytest.raises(UsageError, match="512x512 do not fit"):  # Latte's own: 3 MB a frame
        rehearsing("latte").rehearse([Settings("a cat", frames=400)])


@pytest.mark.parametrize(
    ("kind", "fact"), [("StableVideoDiffusionPipeline", "it needs image too"), ("DDPMPipeline", "it takes no prompt")]
)
def test_a_pipeline_that_text_is_not_enough_for(kind, fact):
    pipeline = object.__new__(getattr(diffusers, kind))
    with pytest.raises(UsageError, match="from text alone") as refused:
        validate.check_inputs(pipeline, {"prompt": "a cat"})
    assert refused.value.facts == (fact,)


@pytest.mark.parametrize(
    ("name", "wish", "read"),
    [
        ("latte", {"frames": 4, "size": (16, 16)}, True),
        ("latte", {"frames": 4, "size": (16, 16), "guidance": 1.0}, False),
        ("flux", {"size": (32, 32)}, False),
    ],
)
def test_a_negative_prompt_that_no_encoder_gets_is_told(rehearsing, name, wish, read):
    pipeline, notes = rehearsing(name), []
    pipeline.watcher.note = notes.append
    pipeline.rehearse([Settings("a cat", negative="a dog", **wish)] * 2)
    kind = type(pipeline.built).__name__
    assert notes == ([] if read else [f"--negative is not read: {kind} gives it to no encoder"])


@pytest.mark.parametrize(
    ("wish", "scheduler", "ways"),
    [
        ({"steps": 2000}, "DDIMScheduler", ("--steps 1000",)),
        ({"steps": 1200, "scheduler": "ddpm"}, "DDPMScheduler", ("--steps 1000", "leave out --scheduler")),
    ],
)
def test_steps_that_the_scheduler_refuses_are_refused_before_anything_is_read(rehearsing, wish, scheduler, ways):
    pipeline, settings = rehearsing("latte"), Settings("a cat", frames=4, size=(16, 16), **wish)
    says = rf"{scheduler}, the scheduler of LattePipeline, does not take {wish['steps']:,}"
    with pytest.raises(UsageError, match=says) as refused:
        pipeline.rehearse([settings])
    assert refused.value.facts
    assert refused.value.ways_out == ways
