"""Pipelines from text to frames: the values of diffusers' own run, phases, steps down, refusals."""

import numpy as np
import pytest
import torch

import rung
from rung.core.errors import BadFile, DoesNotFit, UsageError
from rung.engine import system
from rung.hub.pipelines import Folder
from rung.pipelines.generate import Pipeline, Settings, Watcher
from tests.tiny_pipelines import saved

diffusers = pytest.importorskip("diffusers")
CAT = Settings(prompt="a cat runs", frames=4, size=(16, 16), steps=3, seed=7)


@pytest.fixture(scope="module")
def latte(tmp_path_factory):
    return saved("latte", tmp_path_factory.mktemp("pipelines") / "latte")


@pytest.fixture(scope="module")
def cpu():
    return next(one for one in system.proven_devices(lambda device: None) if one.kind == "cpu")


def frames(folder, device, settings=CAT, **options):
    (made,) = Pipeline(folder, device, **options).make([settings])
    return made


def by_diffusers(folder, settings):
    from diffusers import DiffusionPipeline

    pipeline = DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    made = pipeline(
        settings.prompt,
        video_length=settings.frames,
        width=settings.size[0],
        height=settings.size[1],
        num_inference_steps=settings.steps,
        generator=torch.Generator().manual_seed(settings.seed),
        output_type="np",
        clean_caption=False,
    ).frames
    return (np.asarray(made)[0] * 255).round().astype(np.uint8)


def test_frames_are_those_of_diffusers(latte, cpu):
    """In f32 the same to the last bit of a byte, and they are frames of something."""
    made = frames(latte, cpu, format="f32")
    want = by_diffusers(latte, CAT)
    assert made.frames.shape == (4, 16, 16, 3)
    assert want.std() > 5
    assert np.abs(made.frames.astype(int) - want).max() <= 1
    other = frames(latte, cpu, Settings("a dog runs", frames=4, size=(16, 16), steps=3, seed=7), format="f32")
    assert (other.frames != made.frames).any()


def test_int8_and_nf4_are_near(latte, cpu):
    want = frames(latte, cpu, format="f32").frames.astype(float)
    for name, most in (("int8", 2.0), ("nf4", 25.0)):
        made = frames(latte, cpu, format=name)
        assert {made.plan.held(one).format for one in ("text_encoder", "transformer")} == {name}
        assert 0 < np.abs(made.frames - want).mean() < most, name


def test_one_network_is_there_at_a_time(latte, cpu):
    """What encodes has gone when the denoiser is read, and that when the decoder is."""
    there = []
    watcher = Watcher(progress=lambda label, done, total: there.append(label) if done == total else None)
    frames(latte, cpu, watcher=watcher)
    assert there == ["reading text_encoder", "reading transformer", "reading vae"]


def test_all_prompts_are_encoded_first(latte, cpu):
    there = []
    watcher = Watcher(progress=lambda label, done, total: there.append(label) if done == total else None)
    dog = Settings("a dog runs", frames=4, size=(16, 16), steps=3, seed=7)
    made = list(Pipeline(latte, cpu, watcher=watcher).make([CAT, dog]))
    assert there.count("reading text_encoder") == 1
    assert (made[1].frames == frames(latte, cpu, dog).frames).all()


def test_what_does_not_fit_says_what_would(latte, cpu):
    with pytest.raises(DoesNotFit) as refused:
        Pipeline(latte, cpu, memory="100MB").plan(CAT)
    assert any("--memory" in way for way in refused.value.ways_out)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings("a cat", frames=4, size=(17, 16), steps=3), "divisible by 8"),
        (Settings("a cat", frames=3, size=(16, 16), steps=3), "refuses this"),
        (Settings("a cat " * 200, frames=4, size=(16, 16)), "reads 120"),
        (Settings("a cat", size=(16, 16), scheduler="dpmm"), "no scheduler"),
    ],
)
def test_what_is_refused_is_refused_before_anything_is_read(latte, cpu, settings, said):
    def nothing(*told):
        raise AssertionError("a weight was read")

    with pytest.raises(UsageError) as refused:
        next(Pipeline(latte, cpu, watcher=Watcher(progress=nothing)).make([settings]))
    assert said in str(refused.value)


def test_a_pipeline_without_a_component(latte, cpu, tmp_path):
    import shutil

    folder = tmp_path / "latte"
    shutil.copytree(latte, folder)
    shutil.rmtree(folder / "transformer")
    with pytest.raises(BadFile, match="lacks transformer"):
        Pipeline(folder, cpu)


CARDS = ("2080 Ti", "RTX 3070", "Quadro P2200")


@pytest.mark.parametrize("card", CARDS)
def test_every_step_on_a_simulated_card(latte, cpu, card):
    """The same noise and nearly the same frames; an encoder never computes in f16, nor an autoencoder."""
    folder = Folder(latte)
    with rung.simulate(card) as device:
        (made,) = Pipeline(folder, device).make([CAT])
    held = {name: way.dtype for phase in made.plan.phases for name, way in phase.held.items()}
    assert held["vae"] == "f32"
    assert held["text_encoder"] in ("f32", "bf16")
    want = frames(latte, cpu, format="f32").frames.astype(float)
    assert np.abs(made.frames - want).mean() < (10 if "bf16" in held.values() else 3)


def test_a_refusal_in_the_middle_loses_no_step(latte, cpu, monkeypatch):
    """The second step of the denoiser is refused in f16: it is repeated in f32, and no step is made twice."""
    folder, steps, done, calls = Folder(latte), [], [], []
    original = diffusers.LatteTransformer3DModel.forward

    def refusing(self, hidden_states, *args, **kwargs):
        if not hidden_states.is_meta:
            calls.append(hidden_states.dtype)
            if hidden_states.dtype == torch.float16 and len(calls) > 1:
                raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle)`")
        return original(self, hidden_states, *args, **kwargs)

    monkeypatch.setattr(diffusers.LatteTransformer3DModel, "forward", refusing)
    with rung.simulate("2080 Ti") as device:
        (made,) = Pipeline(
            folder, device, watcher=Watcher(steps=lambda at, total: done.append(at), step=steps.append)
        ).make([CAT])
    assert calls == [torch.float16, torch.float16, torch.float32, torch.float32]
    assert done == [1, 2, 3]
    assert [(step.op, str(step.step)) for step in steps] == [("transformer", "unsupported")]
    assert made.frames.std() > 5


def test_a_full_memory_in_the_middle_makes_slices(latte, cpu, monkeypatch):
    original = diffusers.AutoencoderKL.decode

    def full(self, z, *args, **kwargs):
        if not z.is_meta and len(z) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return original(self, z, *args, **kwargs)

    steps = []
    want = frames(latte, cpu, format="f32")
    monkeypatch.setattr(diffusers.AutoencoderKL, "decode", full)
    made = frames(latte, cpu, format="f32", watcher=Watcher(step=steps.append))
    assert [(step.op, str(step.step)) for step in steps] == [("vae", "out of memory")] * 2
    assert made.plan.held("vae").at_once == 1
    assert np.abs(made.frames.astype(int) - want.frames).max() <= 1
