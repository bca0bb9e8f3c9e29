"""Experts that other quantizers stored one by one: held as they are stored, with the values of an own decoder."""

import math

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import rung
from rung import formats
from rung.core.errors import BadFile
from rung.hub import transformers as hub
from rung.nn import QuantExperts
from tests.foreign import VARIANTS, Variant, compressed, configure
from tests.support.models import logits_of

IDS = torch.tensor([[1, 17, 300, 4, 25, 60]])
SMALL = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
}
QWEN = SMALL | {"moe_intermediate_size": 192, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4}
DEEPSEEK = SMALL | {
    "moe_intermediate_size": 192,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 0,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
MODELS = {
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**QWEN),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(**DEEPSEEK),
}
#: Whole rows of 128 and of 192 columns: groups of 128 and 64.
VARIANTS = VARIANTS | {"ct-fp8-rows": compressed(False, 8, "channel", type="float")}


@pytest.fixture(autouse=True)
def installed():
    hub.install()
    yield
    hub.uninstall()


def write(folder, kind: str, variant: Variant):
    """A tiny mixture whose experts are stored so; returns it with their decoded weights, and the dtype of these."""
    torch.manual_seed(0)
    reference = AutoModelForCausalLM.from_config(MODELS[kind](), attn_implementation="eager").eval()
    reference.save_pretrained(folder)
    path, stored, values = folder / "model.safetensors", {}, {}
    for name, weight in load_file(path).items():
        if ".experts." not in name:
            stored[name] = weight
            continue
        parts, values[name] = variant.store(weight)
        stored |= {name.removesuffix(".weight") + end: part.contiguous() for end, part in parts.items()}
    assert len(values) == 12
    save_file(stored, path, metadata={"format": "pt"})
    configure(folder, variant.config)
    experts = reference.model.layers[0].mlp.experts
    gate, down, up = (
        torch.stack([values[name].float() for name in values if name.endswith(f"{end}.weight")])
        for end in (("w1", "w2", "w3") if kind == "mixtral" else ("gate_proj", "down_proj", "up_proj"))
    )
    with torch.no_grad():
        experts.gate_up_proj.copy_(torch.cat([gate, up], dim=1))
        experts.down_proj.copy_(down)
    return reference, next(iter(values.values())).dtype


def load(folder, **options):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", **options
    ).eval()


def same(weights, expected, dtype):
    """Return whether decoded weights equal those in the dtype that their package decodes to."""
    decoded = weights if isinstance(weights, torch.Tensor) else torch.stack([w.decode(torch.float32) for w in weights])
    return torch.equal(decoded.to(dtype).float(), expected)


CASES = [
    ("mixtral", "gptq", "q4_0"),
    ("qwen3_moe", "gptq-ordered-3-asymmetric", "u4:32:ordered"),
    ("qwen3_moe", "awq", "u4:32"),
    ("mixtral", "ct-int4-asymmetric", "u4:32:bf16"),
    ("qwen3_moe", "ct-fp8-rows", "e4m3:64:bf16"),
    ("deepseek_v3", "fp8", "e4m3:32"),
    ("deepseek_v3", "nf4-nested", "nf4:64"),
]


@pytest.mark.parametrize(("kind", "name", "stored_as"), CASES)
def test_they_are_held_as_they_are_stored(tmp_path, kind, name, stored_as):
    pytest.importorskip(VARIANTS[name].package or "torch")
    reference, dtype = write(tmp_path / "theirs", kind, VARIANTS[name])
    model, want = load(tmp_path / "theirs"), reference.model.layers[0].mlp.experts
    experts = model.model.layers[0].mlp.experts
    assert isinstance(experts, QuantExperts)
    assert {weight.format.name for weight in [*experts.gate_up_proj, *experts.down_proj]} == {stored_as}
    assert same(experts.gate_up_proj, want.gate_up_proj, dtype)
    assert same(experts.down_proj, want.down_proj, dtype)
    ours = logits_of(model, IDS)
    assert (ours - logits_of(reference, IDS)).norm() < 0.02 * ours.norm()  # rungs may quantize activations
    model.save_pretrained(tmp_path / "ours")
    names = load_file(tmp_path / "ours" / "model.safetensors")
    assert any(part.endswith(f"experts.down_proj.3.{stored_as.replace(':', '_')}") for part in names)
    assert torch.equal(logits_of(load(tmp_path / "ours"), IDS), ours)
    model.dequantize()
    assert same(model.model.layers[0].mlp.experts.gate_up_proj, want.gate_up_proj, dtype)


def test_what_no_layer_holds_is_decoded(tmp_path):
    reference, dtype = write(tmp_path, "qwen3_moe", VARIANTS["gptq-ordered"])
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    name = next(name for name in stored if name.endswith("experts.2.up_proj.g_idx"))
    stored[name] = stored[name].flip(0)  # the columns of this one lie in an order of their own
    save_file(stored, path, metadata={"format": "pt"})
    experts = load(tmp_path).model.layers[0].mlp.experts
    want = reference.model.layers[0].mlp.experts
    assert not isinstance(experts, QuantExperts)
    assert same(experts.down_proj, want.down_proj, dtype)
    assert same(experts.gate_up_proj[:2], want.gate_up_proj[:2], dtype)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("experts.1.down_proj.weight_scale_inv", "some of its weights lack a part"),
        ("experts.3.down_proj", r"is \[3, 128, 192\] in the checkpoint, and \[4, 128, 192\] in the model"),
    ],
)
def test_what_is_missing_is_told(tmp_path, end, says):
    write(tmp_path, "qwen3_moe", VARIANTS["fp8"])
    path = tmp_path / "model.safetensors"
    kept = {name: part for name, part in load_file(path).items() if end not in name}
    save_file(kept, path, metadata={"format": "pt"})
    with pytest.raises(BadFile, match=says) as caught:
        load(tmp_path)
    assert "layers.0.mlp.experts.down_proj" in str(caught.value)


def test_experts_that_rung_quantized_are_saved_as_they_are(tmp_path):
    model = AutoModelForCausalLM.from_config(MODELS["mixtral"]())
    model.save_pretrained(tmp_path / "plain")
    config = rung.QuantizationConfig("nf4")
    model = load(tmp_path / "plain", quantization_config=config)
    model.save_pretrained(tmp_path / "saved")
    names = load_file(tmp_path / "saved" / "model.safetensors")
    assert any(name.endswith("experts.gate_up_proj.3.nf4_64") for name in names)
    assert torch.equal(logits_of(load(tmp_path / "saved"), IDS), logits_of(model, IDS))
    assert math.isfinite(float(logits_of(model, IDS).sum()))


@pytest.mark.parametrize("name", ["u2:32", "e4m3:64:bf16", "u4:32:ordered", "q4_0", "int8", "nf4:128", "fp4:64:nested"])
def test_stacked_weights_keep_every_value(name):
    first, second = (_sample(name, seed) for seed in (0, 1))
    if "order" in first.parts:
        assert formats.stacked([first, second]) is None
        second.parts["order"] = first.parts["order"]
    whole = formats.stacked([first, second])
    assert whole.shape == (2 * first.shape[0], first.shape[1])
    expected = torch.cat([torch.from_numpy(formats.decode(each)) for each in (first, second)])
    assert torch.equal(torch.from_numpy(formats.decode(whole)), expected)


def test_what_cannot_be_stacked():
    assert formats.stacked([_sample("q4_0", 0), _sample("q8_0", 0)]) is None
    short = formats.encode(torch.randn(3, 64).numpy(), formats.get("nf4:128"))
    assert formats.stacked([short, short]) is None


def _sample(name, seed):
    import numpy as np

    generator, fmt = np.random.default_rng(seed), formats.get(name)
    if not fmt.encodes:
        return formats.families.grouped.sample(fmt, (6, 128), generator)
    return formats.encode(generator.standard_normal((6, 128)), fmt)
