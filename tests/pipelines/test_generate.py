"""Pipelines from text to frames: the values of diffusers' own run, phases, steps down, refusals."""

import contextlib
import json
import shutil

import numpy as np
import pytest
import torch

import rung
from rung.core.errors import BadFile, DoesNotFit, ModelNotFound, UnknownArchitecture, UsageError
from rung.engine import planning
from rung.hub.diffusers.pipelines import Folder
from rung.kernels.gpu.dtypes import TORCH_DTYPE
from rung.nn import QuantLinear
from rung.nn.quantize import put
from rung.pipelines.execute import converted
from rung.pipelines.generate import Pipeline, Settings, Watcher
from rung.pipelines.weights import fill
from rung.planning.pipeline import NetworkStorage
from tests.tiny_pipelines import saved

diffusers = pytest.importorskip("diffusers")
CAT = Settings(prompt="a cat runs", frames=4, size=(16, 16), steps=3, seed=7)


@pytest.fixture(scope="module")
def latte(tmp_path_factory):
    return saved("latte", tmp_path_factory.mktemp("pipelines") / "latte")


@pytest.fixture(scope="module")
def cpu():
    return next(one for one in planning.proven_devices(lambda device: None) if one.kind == "cpu")


def frames(folder, device, settings=CAT, **options):
    (result,) = Pipeline(folder, device, **options).make([settings])
    return result


@pytest.fixture(scope="module")
def plain(latte, cpu):
    """Return the frames made in f32."""
    return frames(latte, cpu, format="f32")


def by_diffusers(folder, settings):
    from diffusers import DiffusionPipeline

    pipeline = DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    output = pipeline(
        settings.prompt,
        video_length=settings.frames,
        width=settings.size[0],
        height=settings.size[1],
        num_inference_steps=settings.steps,
        generator=torch.Generator().manual_seed(settings.seed),
        output_type="np",
        clean_caption=False,
    ).frames
    return (np.asarray(output)[0] * 255).round().astype(np.uint8)


def test_frames_are_those_of_diffusers(latte, cpu, plain):
    """In f32 the same to the last bit of a byte, and they are frames of something."""
    want = by_diffusers(latte, CAT)
    assert plain.frames.shape == (4, 16, 16, 3)
    assert want.std() > 5
    assert list(plain.phases) == ["encode", "denoise", "decode"]
    assert min(plain.phases.values()) > 0
    assert sum(plain.phases.values()) <= plain.seconds
    assert np.abs(plain.frames.astype(int) - want).max() <= 1
    other = frames(latte, cpu, Settings("a dog runs", frames=4, size=(16, 16), steps=3, seed=7), format="f32")
    assert (other.frames != plain.frames).any()


def test_int8_and_nf4_are_near(latte, cpu, plain):
    """Where the processor multiplies bfloat16 itself the denoiser computes in that, which alone moves a byte by 4.5."""
    want = plain.frames.astype(float)
    for name, limits in (("int8", {"f32": 2.0, "bf16": 8.0}), ("nf4", {"f32": 25.0, "bf16": 25.0})):
        result = frames(latte, cpu, format=name)
        most = limits[result.plan.storage("transformer").dtype]
        assert {result.plan.storage(one).format for one in ("text_encoder", "transformer")} == {name}
        assert 0 < np.abs(result.frames - want).mean() < most, name


def test_one_network_is_there_at_a_time(latte, cpu):
    """The encoder has gone when the denoiser is read, and the denoiser when the decoder is."""
    there = []
    watcher = Watcher(progress=lambda label, done, total: there.append(label) if done == total else None)
    frames(latte, cpu, watcher=watcher)
    assert there == ["reading text_encoder", "reading transformer", "reading vae"]


def test_all_prompts_are_encoded_first(latte, cpu):
    there = []
    watcher = Watcher(progress=lambda label, done, total: there.append(label) if done == total else None)
    dog = Settings("a dog runs", frames=4, size=(16, 16), steps=3, seed=7)
    results = list(Pipeline(latte, cpu, watcher=watcher).make([CAT, dog]))
    assert there.count("reading text_encoder") == 1
    assert (results[1].frames == frames(latte, cpu, dog).frames).all()


def test_what_does_not_fit_says_what_would(latte, cpu):
    with pytest.raises(DoesNotFit) as refused:
        Pipeline(latte, cpu, memory="100MB").plan(CAT)
    assert any("--memory" in way for way in refused.value.ways_out)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings("a cat", frames=4, size=(17, 16), steps=3), "divisible by 8"),
        (Settings("a cat", frames=3, size=(16, 16), steps=3), "does not make 3 frames of 16x16"),
        (Settings("a cat " * 200, frames=4, size=(16, 16)), "The prompt has 401 tokens, and LattePipeline reads 120"),
        (Settings("a cat", negative="dog " * 200, frames=4, size=(16, 16)), "The negative prompt has 201 tokens"),
        (Settings("a cat", size=(16, 16), scheduler="dpmm"), "no scheduler"),
    ],
)
def test_what_is_refused_is_refused_before_anything_is_read(latte, cpu, settings, said):
    def nothing(*arguments):
        raise AssertionError("a weight was read")

    with pytest.raises(UsageError) as refused:
        next(Pipeline(latte, cpu, watcher=Watcher(progress=nothing)).make([settings]))
    assert said in str(refused.value)


def test_a_pipeline_without_a_component(latte, cpu, tmp_path):
    folder = shutil.copytree(latte, tmp_path / "latte")
    shutil.rmtree(folder / "transformer")
    with pytest.raises(BadFile, match="lacks transformer"):
        Pipeline(folder, cpu)
    index = json.loads((latte / "model_index.json").read_text())
    del index["vae"]
    (folder / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(BadFile, match=r"lacks vae, transformer[\s\S]*is made of tokenizer, text_encoder, vae"):
        Pipeline(folder, cpu)


@pytest.mark.parametrize(
    ("part", "error", "says"),
    [
        ("file", ModelNotFound, "vae has no weights"),
        ("tensor", BadFile, r"vae lacks 1 tensor\n  missing: decoder\.conv_in\.bias"),
        ("shape", BadFile, r"conv_in\.bias of vae has the shape \[3\]"),
    ],
)
def test_weights_that_are_needed_last_are_looked_for_first(latte, cpu, tmp_path, part, error, says):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(latte, tmp_path / "latte")
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    weights.unlink()
    if part == "tensor":
        del tensors["decoder.conv_in.bias"]
    elif part == "shape":
        tensors["decoder.conv_in.bias"] = torch.zeros(3)
    if part != "file":
        save_file(tensors, weights)

    def nothing(*arguments):
        raise AssertionError("a weight was read")

    with pytest.raises(error, match=says):
        next(Pipeline(folder, cpu, watcher=Watcher(progress=nothing)).make([CAT]))


def test_what_is_stored_quantized_is_told_apart(latte, cpu, tmp_path):
    folder = shutil.copytree(latte, tmp_path / "latte")
    config = rung.QuantizationConfig("nf4")
    kind = diffusers.LatteTransformer3DModel
    kind.from_pretrained(latte / "transformer", quantization_config=config).save_pretrained(folder / "transformer")
    with pytest.raises(UsageError, match=r"transformer of latte is stored quantized, by rung[\s\S]*--format nf4"):
        Pipeline(folder, cpu).plan(CAT)


def test_a_component_that_nobody_knows(latte, cpu, tmp_path):
    folder = shutil.copytree(latte, tmp_path / "latte")
    index = json.loads((folder / "model_index.json").read_text())
    for entry, said in ((["diffusers", "BrandNewTransformer"], "BrandNewTransformer"), (["mine", "Net"], "mine")):
        (folder / "model_index.json").write_text(json.dumps(index | {"transformer": entry}))
        with pytest.raises(UnknownArchitecture, match=said):
            Pipeline(folder, cpu)


def test_a_weight_that_a_network_has_twice_is_planned_once(latte, cpu):
    """T5's embedding is its encoder's too."""
    from transformers import T5EncoderModel

    network = next(one for one in Pipeline(latte, cpu).rehearse([CAT]) if one.name == "text_encoder")
    assert network.parameters == sum(
        p.numel() for p in T5EncoderModel.from_pretrained(latte / "text_encoder").parameters()
    )


#: The first holds f16, as those of small budgets below, the others bf16 and f32.
CARDS = (pytest.param("2080 Ti", marks=pytest.mark.slow), "RTX 3070", "Quadro P2200")


@pytest.mark.parametrize("card", CARDS)
def test_every_step_on_a_simulated_card(latte, plain, card):
    """The same noise and nearly the same frames; an encoder never computes in f16, nor an autoencoder."""
    folder = Folder(latte)
    with rung.simulate(card) as device:
        (result,) = Pipeline(folder, device).make([CAT])
    dtypes = {name: way.dtype for phase in result.plan.phases for name, way in phase.held.items()}
    assert dtypes["vae"] == "f32"
    assert dtypes["text_encoder"] in ("f32", "bf16")
    want = plain.frames.astype(float)
    assert np.abs(result.frames - want).mean() < (10 if "bf16" in dtypes.values() else 3)


@pytest.mark.parametrize("name", ["int8", "nf4"])
def test_a_small_budget_holds_formats_on_a_simulated_card(latte, plain, name):
    """Where 16 bits do not fit the networks are quantized there, and the frames are near all the same."""
    folder = Folder(latte)
    with rung.simulate("2080 Ti") as device:
        pipeline = Pipeline(folder, device, format=name)
        need = max(phase.memory.most for phase in pipeline.plan(CAT).phases)
        (result,) = Pipeline(folder, device, memory=need, format=name).make([CAT])
    assert {result.plan.storage(one).format for one in ("text_encoder", "transformer")} == {name}
    assert result.plan.storage("transformer").dtype == "f16"
    want = plain.frames.astype(float)
    assert 0 < np.abs(result.frames - want).mean() < (4 if name == "int8" else 25)


@pytest.mark.parametrize(("name", "card"), [("int8", None), ("nf4", None), ("nf4", "2080 Ti")])
def test_a_quantized_denoiser_errs_like_plain_layers_with_the_decoded_weights(latte, name, card):
    """Against f32, at most 1.1 times as much; on the card in f16, whose rounding nf4 hides and int8 does not."""
    source, folder = latte / "transformer", Folder(latte)

    def filled(storage, device):
        return fill(folder.network("transformer"), source, storage, torch.device(device), lambda done, total: None)

    plain = filled(NetworkStorage(name, "f32", 1), "cpu")
    layers = [key for key, layer in plain.named_modules() if isinstance(layer, QuantLinear)]
    assert len(layers) > 10
    for key in layers:
        put(plain, key, plain.get_submodule(key).dequantize())
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 4, 4, 8, 8, generator=generator), torch.tensor([500, 500])]
    named = {"encoder_hidden_states": torch.randn(2, 6, 64, generator=generator), "enable_temporal_attentions": True}
    with torch.no_grad():
        exact = filled(NetworkStorage("f32", "f32", 1), "cpu")(*inputs, **named, return_dict=False)[0]
        decoded = plain(*inputs, **named, return_dict=False)[0]
        with rung.simulate(card) if card else contextlib.nullcontext():
            device_name, dtype = ("cuda:0", "f16") if card else ("cpu", "f32")
            there = converted(inputs, named, torch.device(device_name), TORCH_DTYPE[dtype])
            found = (
                filled(NetworkStorage(name, dtype, 1), device_name)(*there[0], **there[1], return_dict=False)[0]
                .cpu()
                .float()
            )
    error, limit = ((each - exact).norm() / exact.norm() for each in (found, decoded))
    assert 0 < error <= 1.1 * limit, (float(error), float(limit))


def test_numbers_that_overflow_in_f16_are_computed_again_in_f32(latte, monkeypatch):
    folder, steps = Folder(latte), []
    original = diffusers.LatteTransformer3DModel.forward

    def overflowing(self, hidden_states, *args, **kwargs):
        (found,) = original(self, hidden_states, *args, **kwargs)
        return (found * 1e6,) if hidden_states.dtype == torch.float16 else (found,)

    monkeypatch.setattr(diffusers.LatteTransformer3DModel, "forward", overflowing)
    with rung.simulate("2080 Ti") as device:
        (result,) = Pipeline(folder, device, watcher=Watcher(step=steps.append)).make([CAT])
    assert [(step.op, str(step.step)) for step in steps] == [("transformer", "broken")]
    assert result.plan.storage("transformer").dtype == "f32"
    assert result.frames.std() > 5


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
        (result,) = Pipeline(
            folder, device, watcher=Watcher(steps=lambda at, total: done.append(at), step=steps.append)
        ).make([CAT])
    assert calls == [torch.float16, torch.float16, torch.float32, torch.float32]
    assert done == [1, 2, 3]
    assert [(step.op, str(step.step)) for step in steps] == [("transformer", "unsupported")]
    assert result.frames.std() > 5


def test_a_full_memory_in_the_middle_makes_slices(latte, cpu, plain, monkeypatch):
    original = diffusers.AutoencoderKL.decode

    def full(self, z, *args, **kwargs):
        if not z.is_meta and len(z) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return original(self, z, *args, **kwargs)

    steps = []
    monkeypatch.setattr(diffusers.AutoencoderKL, "decode", full)
    result = frames(latte, cpu, format="f32", watcher=Watcher(step=steps.append))
    assert [(step.op, str(step.step)) for step in steps] == [("vae", "out of memory")] * 2
    assert result.plan.storage("vae").at_once == 1
    assert np.abs(result.frames.astype(int) - plain.frames).max() <= 1
