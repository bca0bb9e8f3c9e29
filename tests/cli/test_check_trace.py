"""``rung check --trace``: models that no description covers, from the modules of transformers and diffusers."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

import rung as package
from rung.core.errors import SoftwareMissing
from rung.hub.networks import modules

GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 4,
    "vocab_size": 1000, "n_positions": 128,
}  # fmt: skip
UNET = {
    "_class_name": "UNet2DConditionModel", "block_out_channels": [32, 64], "layers_per_block": 1, "sample_size": 16,
    "in_channels": 4, "out_channels": 4, "cross_attention_dim": 48, "attention_head_dim": 8, "norm_num_groups": 8,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}  # fmt: skip
VAE = {
    "_class_name": "AutoencoderKL", "block_out_channels": [32, 64], "sample_size": 32, "norm_num_groups": 8,
    "down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2,
}  # fmt: skip
CLIP = {
    "model_type": "clip_text_model", "architectures": ["CLIPTextModel"], "hidden_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 500, "max_position_embeddings": 77,
}  # fmt: skip


def folder(path, config):
    """A folder with nothing but a configuration."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def test_a_type_without_a_description(rung, tmp_path):
    path = folder(tmp_path / "gpt2", GPT2)
    without = rung("check", path, "--device", "p2200")
    assert without.code == 2
    assert "--trace" in without.err
    answer = json.loads(rung("check", path, "--device", "p2200", "--trace", "--json", "--context", "100").out)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)).eval()
    found = package.trace(model, input_ids=torch.zeros(1, 100, dtype=torch.long), use_cache=False)
    (traced,) = answer["passes"]
    assert answer["parameters"] == sum(value.numel() for value in model.parameters())
    assert (traced["flops"], traced["calls"], traced["tokens"]) == (found.flops, found.calls, 100)
    assert sum(one["flops"] for one in traced["operations"]) == found.flops
    for choice in answer["choices"]:
        assert choice["memory"]["activations"] == traced["activations"] == found.peak_activations
        assert choice["speed"]["decode_tokens_per_second"] > 0
        assert choice["memory"]["kv_cache"] == 2 * 2 * 64 * 100 * 4  # transformers keeps what it computes in, f32 there
    screen = rung("check", path, "--device", "p2200", "--trace").out
    assert f"{found.calls:,} operations" in screen
    assert "MFLOP" in screen


def test_a_model_that_is_described_too(rung, tmp_path):
    config = {
        "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 500,
    }  # fmt: skip
    path = folder(tmp_path / "bert", config)
    plain = json.loads(rung("check", path, "--device", "p2200", "--json").out)
    traced = json.loads(rung("check", path, "--device", "p2200", "--json", "--trace").out)
    assert plain["parameters"] == traced["parameters"]
    assert "passes" not in plain
    assert traced["choices"][0]["memory"]["weights"] == plain["choices"][0]["memory"]["weights"]
    assert traced["choices"][0]["memory"]["activations"] == traced["passes"][0]["activations"]


def test_a_pipeline_has_the_activations_of_its_parts(rung, tmp_path):
    pytest.importorskip("diffusers")
    parts = {"text_encoder": CLIP, "unet": UNET, "vae": VAE}
    for name, config in parts.items():
        folder(tmp_path / name, config)
    index = {name: ["library", "Class"] for name in parts}
    (tmp_path / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    answer = json.loads(rung("check", str(tmp_path), "--device", "p2200", "--json", "--trace", "--format", "f16").out)
    peaks = [one["activations"] for one in answer["passes"]]
    assert [one["component"] for one in answer["passes"]] == list(parts)
    encoded, denoised, decoded = peaks  # only what denoises computes in f16, in which the others overflow
    used = [phase["memory"]["activations"] for phase in answer["choices"][0]["phases"]]
    assert used == [2 * encoded, denoised, 2 * decoded]
    assert all(one["flops"] for one in answer["passes"])
    assert [one["batch"] for one in answer["passes"]] == [1, 2, 1]  # with the prompt and without
    wide = json.loads(rung("check", str(tmp_path), "--device", "p2200", "--json", "--trace", "--format", "f32").out)
    assert [phase["memory"]["activations"] for phase in wide["choices"][0]["phases"]] == [2 * peak for peak in peaks]


class DecidesConfig(transformers.PretrainedConfig):
    """The configuration of a model that nobody can trace."""

    model_type = "rung-decides"


class Decides(transformers.PreTrainedModel):
    """Goes on if a value is above zero."""

    config_class = DecidesConfig
    main_input_name = "input_ids"

    def __init__(self, config):
        super().__init__(config)
        self.table = torch.nn.Embedding(10, 4)
        self.post_init()

    def forward(self, input_ids=None):
        found = self.table(input_ids)
        return found if found.sum() > 0 else -found


@pytest.fixture(scope="module")
def decides():
    transformers.AutoConfig.register("rung-decides", DecidesConfig)
    transformers.AutoModel.register(DecidesConfig, Decides)
    return {"model_type": "rung-decides"}


def test_a_module_that_runs_code_on_values_is_refused_with_the_line(rung, tmp_path, decides):
    said = rung("check", folder(tmp_path / "x", decides), "--device", "p2200", "--trace")
    assert said.code == 2
    assert "a trace has shapes only" in said.err
    assert "test_check_trace.py" in said.err
    assert "return found if found.sum() > 0 else -found" in said.err


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "nobody", "auto_map": {"AutoModel": "modeling.Mine"}}, "runs no code of models"),
        ({"model_type": "gpt2", "n_layer": 2, "num_hidden_layers": 10**9}, "builds up to"),
        ({**GPT2, "n_layer": 10**12}, "builds up to"),
        ({**GPT2, "n_layer": -2}, "n_layer is -2"),
        ({**GPT2, "n_layer": 0}, "without a layer"),
        ({**GPT2, "num_labels": 10**9}, "builds up to"),
        ({"model_type": "llava", "text_config": {"num_hidden_layers": 10**9}}, "builds up to"),
        ({"model_type": "convnext", "depths": [10**9, 1, 1, 1]}, "builds up to"),
        ({"_class_name": "os.system"}, "does not have"),
        ({"_class_name": "DDPMScheduler"}, "does not have"),
        ({**GPT2, "n_head": 0}, "cannot build"),
        ({**GPT2, "n_embd": "wide"}, "cannot build"),
        ({}, "is of the type ''"),
    ],
)
def test_configurations_that_no_module_can_be_built_from(rung, tmp_path, config, words):
    if "_class_name" in config:
        pytest.importorskip("diffusers")
    said = rung("check", folder(tmp_path / "x", config), "--device", "p2200", "--trace")
    assert said.code == 2
    assert words in said.err
    assert "rung itself failed" not in said.err


def test_a_module_that_would_be_built_for_ever(rung, tmp_path, monkeypatch):
    """Whatever the key is called that says how often."""
    monkeypatch.setattr(modules, "_MOST_PARTS", 1000)
    said = rung("check", folder(tmp_path / "x", GPT2 | {"n_layer": 900}), "--device", "p2200", "--trace")
    assert said.code == 2
    assert "more than 1,000 parts" in said.err
    assert rung("check", folder(tmp_path / "y", GPT2), "--device", "p2200", "--trace").code == 0


def test_a_file_has_no_module(rung, model):
    said = rung("check", model, "--device", "p2200", "--trace")
    assert said.code == 2
    assert "no configuration" in said.err


def test_a_module_that_wants_what_nobody_knows(rung, tmp_path):
    pytest.importorskip("diffusers")
    said = rung("check", folder(tmp_path / "x", {"_class_name": "ControlNetModel"}), "--device", "p2200", "--trace")
    assert said.code == 2
    assert "rung.trace(module" in said.err


def test_without_the_library(rung, tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(modules.importlib, "import_module", missing)
    with pytest.raises(SoftwareMissing, match="pip install transformers"):
        modules.module_of(GPT2, "config.json")
