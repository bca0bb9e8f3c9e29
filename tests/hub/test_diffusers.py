"""Models and pipelines of diffusers, quantized while they are loaded, saved and loaded again; values are compared."""

import copy
import json
import subprocess
import sys

import pytest
import torch

import rung
from rung.core.errors import CannotTrace, UsageError
from rung.nn import QuantLinear
from tests.tiny_pipelines import saved

diffusers = pytest.importorskip("diffusers")
TRANSFORMER = diffusers.LatteTransformer3DModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved("latte", tmp_path_factory.mktemp("pipelines") / "latte")


def result(model):
    torch.manual_seed(1)
    latents, text = torch.randn(2, 4, 4, 8, 8), torch.randn(2, 6, 64)
    with torch.no_grad():
        return model.eval()(latents, encoder_hidden_states=text, timestep=torch.tensor([501, 501])).sample.float()


def relative(found, want):
    return float((found - want).norm() / want.norm())


def load(folder, **options):
    return TRANSFORMER.from_pretrained(folder, subfolder="transformer", **options)


@pytest.mark.parametrize("name", ["int8", "nf4", "q8_0"])
def test_error_is_that_of_plain_layers_with_the_decoded_weights(folder, name):
    """Not zeros, not better than it can be, and at most 1.1 times what the format costs."""
    want = result(load(folder))
    model = load(folder, quantization_config=rung.QuantizationConfig(name))
    layers = [layer for layer in model.modules() if isinstance(layer, QuantLinear)]
    assert len(layers) > 15
    error = relative(result(model), want)
    plain = copy.deepcopy(model)
    for name_, layer in list(plain.named_modules()):
        if isinstance(layer, QuantLinear):
            parent, _, last = name_.rpartition(".")
            setattr(plain.get_submodule(parent), last, layer.dequantize())
    limit = relative(result(plain), want)
    assert 0 < limit < 0.2
    assert error <= 1.1 * limit


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_saved_and_loaded_again_to_the_bit(folder, tmp_path, dtype):
    """Scales are not cast with the rest, which a dtype asks diffusers to do."""
    model = load(folder, quantization_config=rung.QuantizationConfig("nf4", skip=["proj_out"]), torch_dtype=dtype)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["format"], config["skip"]) == ("rung", "nf4:64", ["proj_out"])
    again = TRANSFORMER.from_pretrained(tmp_path, torch_dtype=dtype)
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, value in again.state_dict().items():
        assert value.dtype == model.state_dict()[name].dtype
        assert torch.equal(value, model.state_dict()[name]), name
    if dtype is None:
        assert torch.equal(result(again), result(model))
        assert torch.equal(result(again.dequantize()), result(model.dequantize()))


def test_a_whole_pipeline(folder):
    """T5's wo too; the encoder through transformers, the denoiser through diffusers, one config class for both."""
    config = rung.QuantizationConfig("int8")
    mapping = diffusers.PipelineQuantizationConfig(quant_mapping={"transformer": config, "text_encoder": config})
    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder, quantization_config=mapping)
    assert isinstance(pipeline.text_encoder.encoder.block[0].layer[1].DenseReluDense.wo, QuantLinear)
    plain = diffusers.DiffusionPipeline.from_pretrained(folder)
    assert 0 < relative(result(pipeline.transformer), result(plain.transformer)) < 0.05
    results = []
    for each in (pipeline, plain):
        each.set_progress_bar_config(disable=True)
        noise = torch.Generator().manual_seed(0)
        results.append(
            each("a cat", video_length=4, height=16, width=16, num_inference_steps=2, generator=noise,
                 output_type="pt", clean_caption=False).frames
        )  # fmt: skip
    assert 0 < float((results[0] - results[1]).abs().mean()) < 0.01


def test_bad_configs(folder):
    with pytest.raises(UsageError, match="matches no layer"):
        load(folder, quantization_config=rung.QuantizationConfig("nf4", skip=["lm_heads"]))
    with pytest.raises(UsageError, match="is one part of a pipeline"):
        load(folder, quantization_config=rung.QuantizationConfig("auto"))
    with pytest.raises(UsageError, match="do not divide rows of 64"):
        load(folder, quantization_config=rung.QuantizationConfig("q4_k"))


@pytest.mark.slow
def test_a_fresh_process_needs_only_import_rung(folder, tmp_path):
    load(folder, quantization_config=rung.QuantizationConfig("int8")).save_pretrained(tmp_path)
    code = """if True:
        import sys
        import rung
        assert "torch" not in sys.modules
        from diffusers import LatteTransformer3DModel
        model = LatteTransformer3DModel.from_pretrained(sys.argv[1])
        print(type(model.transformer_blocks[0].attn1.to_q).__name__)
    """
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.split() == ["QuantLinear"], done.stderr


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return saved("stable_diffusion", tmp_path_factory.mktemp("pipelines") / "sd")


def answers(model, name):
    """Return the outputs of a network for inputs that no choice was made by."""
    torch.manual_seed(7)
    x = {"sample": torch.randn(2, 4, 16, 16), "encoder_hidden_states": torch.randn(2, 9, 64), "timestep": 321}
    if name == "latte":
        return result(model)
    with torch.no_grad():
        return model.eval()(**x).sample


@pytest.mark.parametrize("name", ["latte", pytest.param("stable_diffusion", marks=pytest.mark.slow)])
def test_a_budget_of_error_and_of_bytes(name, folder, pictures, tmp_path, monkeypatch):
    """A DiT and a UNet: the KL of Gaussians as wide as the answers is half of their relative squared error."""
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    home, part = (folder, "transformer") if name == "latte" else (pictures, "unet")
    kind = TRANSFORMER if name == "latte" else diffusers.UNet2DConditionModel
    want = answers(kind.from_pretrained(home, subfolder=part), name)
    config = rung.QuantizationConfig(max_kl=5e-5)
    model = kind.from_pretrained(home, subfolder=part, quantization_config=config)
    assert config.max_kl == 5e-5  # the next model with it chooses anew
    found = model.config.quantization_config
    assert 5e-6 < found.expected_kl <= 5e-5
    assert len({layer.stored.format.name for layer in model.modules() if isinstance(layer, QuantLinear)}) > 1
    assert 0.5 * relative(answers(model, name), want) ** 2 == pytest.approx(found.expected_kl, rel=0.7)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(answers(kind.from_pretrained(tmp_path / "saved"), name), answers(model, name))
    bytes_of = (tmp_path / "saved" / "diffusion_pytorch_model.safetensors").stat().st_size
    most = bytes_of - 1000
    smaller = rung.QuantizationConfig(size=most)
    model = kind.from_pretrained(home, subfolder=part, quantization_config=smaller)
    model.save_pretrained(tmp_path / "smaller")
    assert (tmp_path / "smaller" / "diffusion_pytorch_model.safetensors").stat().st_size <= most
    assert model.config.quantization_config.expected_kl > found.expected_kl


@pytest.mark.slow
def test_a_size_counts_what_stays_in_f32(folder, tmp_path, monkeypatch):
    """Parts that authors keep in f32 take 4 bytes a value in a model of 16 bits."""
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(TRANSFORMER, "_keep_in_fp32_modules", ["ff", "patch_embed"])
    load(folder, torch_dtype=torch.bfloat16).save_pretrained(tmp_path / "plain")
    plain = (tmp_path / "plain" / "diffusion_pytorch_model.safetensors").stat().st_size
    most = int(0.9 * plain)
    model = load(folder, quantization_config=rung.QuantizationConfig(size=most), torch_dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "found")
    assert (tmp_path / "found" / "diffusion_pytorch_model.safetensors").stat().st_size <= most
    with pytest.raises(UsageError, match="every layer is left"):
        load(folder, quantization_config=rung.QuantizationConfig(size=10**7), torch_dtype=torch.bfloat16)
    assert not list((tmp_path / "cache").glob("moments-*"))


def test_a_network_with_steps_of_unknown_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    sizes = {"num_attention_heads": 2, "attention_head_dim": 32, "in_channels": 32, "sample_size": 8}
    diffusers.Transformer2DModel(**sizes).save_pretrained(tmp_path / "model")
    with pytest.raises(CannotTrace, match="end at 1 or at 1000"):
        diffusers.Transformer2DModel.from_pretrained(
            tmp_path / "model", quantization_config=rung.QuantizationConfig(max_kl=0.1)
        )


def test_budgets_that_a_network_refuses(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match="judged on inputs"):
        load(folder, quantization_config=rung.QuantizationConfig(max_kl=0.1, text="a.txt"))
    with pytest.raises(UsageError, match="No mixture is so small") as refused:
        load(folder, quantization_config=rung.QuantizationConfig(size=2000))
    assert refused.value.ways_out[0].startswith("size=")
