"""Outlines of places: folders, indexes, GGUF files and configurations, each from headers alone."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from rung.core.errors import BadFile, ModelNotFound
from rung.models import open_card
from rung.models.outline import OTHER, Outline, open_outline

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 256}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
MIXTURES = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {"num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
    "Qwen3Moe": {"num_local_experts": 4, "moe_intermediate_size": 32, "head_dim": 16, "mlp_only_layers": [1]},
    "DeepseekV3": {"n_routed_experts": 8, "moe_intermediate_size": 32, "first_k_dense_replace": 1, **LATENT},
    "GptOss": {"num_local_experts": 4, "head_dim": 16},
}


def save(kind, folder, **more):
    """A tiny checkpoint as transformers writes it, and the model."""
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, "num_experts_per_tok": 2, **MIXTURES[kind], **more})
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "phi3"])
def test_a_folder_that_rung_runs_has_its_card(checkpoints, model_type):
    folder, _ = checkpoints(model_type)
    found, card = open_outline(folder), open_card(folder)
    (component,) = found.components
    assert (found.kind, found.card, component.tensors, component.decoder) == (
        "folder",
        card,
        card.tensors,
        card.decoder,
    )
    assert (found.parameters, found.weight_bytes) == (card.parameters, card.weight_bytes)
    assert [phase.components for phase in found.phases] == [("model",)]
    assert Outline.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "phi3", "qwen2"])
def test_its_configuration_alone_says_the_same(checkpoints, tmp_path, model_type):
    folder, _ = checkpoints(model_type)
    shutil.copy(folder / "config.json", tmp_path)
    whole, alone = open_outline(folder), open_outline(tmp_path)
    assert (alone.kind, alone.card) == ("config", None)
    assert open_outline(tmp_path / "config.json") == alone
    assert alone.components[0].shape == whole.components[0].shape
    assert alone.components[0].decoder == whole.components[0].decoder
    stored = {(t.role, t.name, t.shape, t.format, t.bytes) for t in whole.components[0].tensors}
    assert {(t.role, t.name, t.shape, t.format, t.bytes) for t in alone.components[0].tensors} == stored


@pytest.mark.parametrize("kind", MIXTURES)
def test_mixtures_of_experts_as_they_are_stored(tmp_path, kind):
    model = save(kind, tmp_path)
    found = open_outline(tmp_path)
    assert (found.kind, found.card) == ("folder", None)
    (component,) = found.components
    stored = load_file(tmp_path / "model.safetensors")
    assert {t.name: t.shape for t in component.tensors} == {name: tuple(v.shape) for name, v in stored.items()}
    assert OTHER not in {tensor.role for tensor in component.tensors}
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(tmp_path / "config.json", alone)
    described = open_outline(alone).components[0]
    assert component.parameters == described.parameters == sum(value.numel() for value in stored.values())
    assert component.active_parameters == described.active_parameters
    assert component.weight_bytes == described.weight_bytes
    assert component.shape.layers == model.config.num_hidden_layers


def test_mxfp4_blocks_and_scales_are_one_weight(tmp_path):
    save("GptOss", tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    for name in [name for name in stored if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        count, inner, outer = stored.pop(name).shape
        stored[f"{name}_blocks"] = torch.zeros(count, outer, inner // 32, 16, dtype=torch.uint8)
        stored[f"{name}_scales"] = torch.zeros(count, outer, inner // 32, dtype=torch.uint8)
    save_file(stored, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    whole = open_outline(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    alone = open_outline(tmp_path)
    assert whole.weight_bytes == alone.weight_bytes == sum(v.numel() * v.element_size() for v in stored.values())
    assert whole.parameters == alone.parameters
    tensor = next(t for t in whole.components[0].tensors if t.role == "layers.0.experts_down")
    assert (tensor.format, tensor.shape) == ("mxfp4", (4, 64, 96))


def test_what_a_file_holds_beside_the_model_counts_nowhere(tmp_path):
    save("DeepseekV3", tmp_path)
    before = open_outline(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    more = {
        "model.layers.3.mlp.experts.0.up_proj.weight": torch.ones(4, 4),
        "model.layers.3.eh_proj.weight": torch.ones(2),
    }
    save_file(stored | more, tmp_path / "model.safetensors")
    after = open_outline(tmp_path)
    assert (after.parameters, after.weight_bytes) == (before.parameters, before.weight_bytes)
    assert {t.name for t in after.components[0].tensors if t.role == OTHER} == set(more)


def test_a_folder_that_contradicts_its_configuration(tmp_path):
    save("Mixtral", tmp_path)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    gone = "model.layers.1.self_attn.q_proj.weight"
    save_file({name: value for name, value in stored.items() if name != gone}, path)
    with pytest.raises(BadFile, match="lacks 1 tensor") as error:
        open_outline(tmp_path)
    assert gone in str(error.value)
    save_file(stored | {gone: torch.ones(3, 3)}, path)
    with pytest.raises(BadFile, match=r"q_proj.weight has the shape \[3, 3\]"):
        open_outline(tmp_path)


def test_an_index_without_its_shards(checkpoints, tmp_path):
    _, model = checkpoints("llama")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    whole = open_outline(tmp_path)
    for shard in tmp_path.glob("*.safetensors"):
        shard.unlink()
    found = open_outline(tmp_path)
    assert (found.kind, found.parameters, found.weight_bytes) == ("index", whole.parameters, whole.weight_bytes)
    index = tmp_path / "model.safetensors.index.json"
    assert open_outline(index) == found
    content = json.loads(index.read_text())
    content["metadata"]["total_size"] -= 4
    index.write_text(json.dumps(content))
    with pytest.raises(BadFile, match="does not belong to its config"):
        open_outline(tmp_path)
    del content["metadata"], content["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(content))
    with pytest.raises(BadFile, match="does not belong") as error:
        open_outline(tmp_path)
    assert "model.norm.weight" in str(error.value)
    (tmp_path / "config.json").unlink()
    with pytest.raises(BadFile, match=r"no config\.json beside it"):
        open_outline(index)


def test_places_that_are_no_model(tmp_path):
    with pytest.raises(ModelNotFound):
        open_outline(tmp_path / "nothing")
    with pytest.raises(BadFile, match="holds no model"):
        open_outline(tmp_path)
    (tmp_path / "some.json").write_text("[1]")
    with pytest.raises(BadFile, match="not an object"):
        open_outline(tmp_path / "some.json")
    (tmp_path / "some.json").write_text('{"a": ' * 10**5)
    with pytest.raises(BadFile):
        open_outline(tmp_path / "some.json")


def test_it_needs_no_torch(checkpoints, tmp_path):
    config = tmp_path / "config.json"
    shutil.copy(checkpoints("llama")[0] / "config.json", config)
    code = f"import sys\nfrom rung.models.outline import open_outline\nopen_outline({str(config)!r})\n"
    code += "assert not {'torch', 'numba', 'huggingface_hub', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
