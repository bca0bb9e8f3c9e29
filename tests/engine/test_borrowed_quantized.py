"""Checkpoints of other quantizers for networks that only transformers builds: held as they are stored, planned so."""

import copy
import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.foreign import VARIANTS, store
from tests.hub.test_quantized import gpt_oss
from tests.tiny_pipelines import tokenizer
from transformers.quantizers import auto

import rung
from rung import formats
from rung.core.errors import BadFile, DoesNotFit, UnknownArchitecture
from rung.engine.open_model import open_any
from rung.hub import transformers as hub
from rung.hub.networks import attention
from rung.nn import QuantExperts, QuantLinear

SMALL = {
    "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0,
    "bos_token_id": None, "eos_token_id": None, "max_position_embeddings": 256, "intermediate_size": 128,
}  # fmt: skip
DEEPSEEK = {
    "moe_intermediate_size": 64, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": 32,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
}  # fmt: skip
KINDS = {
    "gpt_neox": ("GPTNeoX", {}),
    "phi": ("Phi", {}),
    "opt": ("OPT", {"ffn_dim": 128, "word_embed_proj_dim": 64}),
    "falcon": ("Falcon", {"ffn_hidden_size": 128}),
    "stablelm": ("StableLm", {"num_key_value_heads": 4}),
    "bloom": ("Bloom", {"n_layer": 2, "n_head": 4}),
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    "mixtral": ("Mixtral", {"num_key_value_heads": 2, "num_local_experts": 4}),
    "deepseek_v3": ("DeepseekV3", DEEPSEEK),
}
IDS = [3, 9, 4, 7, 12, 5, 33]
PROMPT = "a cat runs over the sea"


def chosen(name):
    """The linear layers of the blocks, as quantizers choose them: no router of experts, and no head."""
    inside = any(part in name for part in ("layers.", ".h.", "h."))
    return inside and name.endswith(".weight") and not any(part in name for part in ("norm", "ln_", ".gate.weight"))


@pytest.fixture
def write_folder(tmp_path):
    """Makes a tiny model, quantized: its folder, and the same network with the decoded weights in f32."""

    def of(kind, variant):
        pytest.importorskip(VARIANTS[variant].package or "torch")
        name, own = KINDS[kind]
        torch.manual_seed(3)
        config = getattr(transformers, f"{name}Config")(**SMALL, **own, dtype="bfloat16")
        network = transformers.AutoModelForCausalLM.from_config(config).bfloat16()
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.2)
        folder, plain = tmp_path / "quantized", tmp_path / "plain"
        network.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        shutil.copytree(folder, plain)
        values = store(folder, VARIANTS[variant], chosen, turned=kind == "gpt2")
        assert len(values) >= 8
        whole = {key: value.float() for key, value in (load_file(plain / "model.safetensors") | values).items()}
        save_file(
            {key: value.contiguous() for key, value in whole.items()}, plain / "model.safetensors", {"format": "pt"}
        )
        reference = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
        return folder, reference, values

    return of


def logits(network):
    with torch.no_grad():
        return network(torch.tensor([IDS])).logits[0].float()


def apart(found, expected):
    """The difference of each row, as a share of the row."""
    return (found - expected).norm(dim=1) / expected.norm(dim=1)


def exact(network):
    """The same weights in f32, with no activation quantized."""
    for layer in network.modules():
        if isinstance(layer, QuantLinear):
            layer.exact = True
        elif isinstance(layer, QuantExperts):
            layer.train()
    return torch.nn.Module.float(network)  # transformers' own refuses


def quantized_weights(network):
    """The formats of what layers of rung hold, and the bytes of it, by the names of the parameters."""
    found = {}
    for name, layer in network.named_modules():
        if isinstance(layer, QuantLinear):
            found[f"{name}.weight"] = [layer.stored]
        elif isinstance(layer, QuantExperts):
            found |= {f"{name}.{one}": list(getattr(layer, one)) for one in ("gate_up_proj", "down_proj")}
    return found


def tables():
    return dict(auto.AUTO_QUANTIZER_MAPPING), dict(auto.AUTO_QUANTIZATION_CONFIG_MAPPING)


CASES = [
    ("gpt_neox", "gptq-ordered"),
    ("phi", "gptq"),
    ("falcon", "awq"),
    ("bloom", "llm-int8"),
    ("gpt2", "gptq"),
    ("mixtral", "gptq"),
    ("deepseek_v3", "ct-fp8"),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in [
            ("gpt_neox", "nf4-nested"),
            ("gpt2", "gptq-8"),
            ("opt", "ct-int4"),
            ("stablelm", "fp8"),
            ("gpt2", "hqq"),
            ("mixtral", "gptq-ordered"),
        ]
    ),
]


@pytest.mark.parametrize(("kind", "variant"), CASES)
def test_a_network_holds_what_is_stored(write_folder, kind, variant):
    folder, reference, values = write_folder(kind, variant)
    before = tables()
    model = rung.load(folder, device="cpu", context=64)
    assert before == tables()
    assert model.plan.reasons[0] == "the formats are kept as they are stored"
    network, dtype = model.backend.kept.network, next(iter(values.values())).dtype
    planned = {tensor.name: tensor for tensor in model.card.component.tensors if tensor.source}
    layers = quantized_weights(network)
    assert layers.keys() == planned.keys()
    for name, weights in layers.items():
        assert {weight.format.name for weight in weights} == {planned[name].format}
        assert sum(part.nbytes for weight in weights for part in weight.parts().values()) == planned[name].bytes
        decoded = torch.stack([weight.decode(torch.float32) for weight in weights]).squeeze(0)
        want = reference.get_parameter(name)
        assert torch.equal(decoded.to(dtype).float(), want.T if kind == "gpt2" else want)
        want.data = decoded.T if kind == "gpt2" else decoded  # packages round to 16 bits what is decoded to 32 here
    assert sum(part.nbytes for part in network.parameters()) <= model.plan.placements[0].memory.weights
    found, whole = model.logits(IDS), logits(reference)
    rounded = apart(logits(copy.deepcopy(reference).bfloat16()), whole)
    # rungs may quantize activations, and a token may meet other experts then
    assert apart(found, whole).median() < 3 * rounded.median()
    hub.install()
    try:
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=network.dtype).eval()
        attention.use(theirs)
        assert apart(found, logits(theirs)).max() < 1e-3
    finally:
        hub.uninstall()
    answer = model.generate(PROMPT, raw=True, max_tokens=4)
    assert "".join(answer) == answer.result["text"]
    assert len(answer.result["tokens"]) == 4
    assert apart(logits(exact(network)), whole).max() < 1e-4


def test_mxfp4_experts_of_gpt_oss(tmp_path):
    reference = gpt_oss(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    model = rung.load(tmp_path, device="cpu", context=64)
    network = model.backend.kept.network
    assert {weights[0].format.name for weights in quantized_weights(network).values()} == {"mxfp4"}
    planned = {tensor.name: tensor.bytes for tensor in model.card.component.tensors if tensor.source}
    assert planned == {
        name: sum(part.nbytes for weight in weights for part in weight.parts().values())
        for name, weights in quantized_weights(network).items()
    }
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[model.plan.dtype]  # by what the processor is quick in
    assert apart(logits(exact(network)), logits(reference.to(dtype).float())).max() < 1e-4


def test_the_formats_are_those_that_are_stored(write_folder):
    folder, _, _ = write_folder("gpt_neox", "gptq")
    plan = rung.plan(folder, device="cpu", context=64)
    assert rung.plan(folder, format="stored", device="cpu", context=64).parts == plan.parts
    assert {part.format for part in plan.parts} == {"q4_0", plan.dtype}
    most = plan.placements[0].memory.most
    assert rung.plan(folder, device="cpu", context=64, memory=most).format == "stored"
    with pytest.raises(DoesNotFit):
        rung.plan(folder, device="cpu", context=64, memory=most - 1)


@pytest.mark.parametrize(
    ("kind", "variant", "format"),
    [
        ("gpt_neox", "gptq-ordered", "q8_0"),
        pytest.param("mixtral", "gptq", "nf4", marks=pytest.mark.slow),
        pytest.param("phi", "awq", "bf16", marks=pytest.mark.slow),
    ],
)
def test_another_format_may_be_asked_for(write_folder, kind, variant, format):
    """Stored weights are decoded and encoded again, one at a time; those left in floats stay."""
    folder, reference, _ = write_folder(kind, variant)
    model = rung.load(folder, format=format, device="cpu", context=64)
    assert model.plan.format == formats.get(format).name
    layers = quantized_weights(model.backend.kept.network)
    stored = quantized_weights(rung.load(folder, device="cpu", context=64).backend.kept.network)
    assert layers.keys() == stored.keys()
    for name, weights in layers.items():
        for weight, before in zip(weights, stored[name], strict=True):
            again = formats.convert(before.encoded(), formats.get(format))
            assert again.parts.keys() == weight.parts().keys()
            assert all(
                torch.equal(torch.from_numpy(value), weight.parts()[part]) for part, value in again.parts.items()
            )
    assert apart(model.logits(IDS), logits(reference)).median() < 0.5
    answer = model.generate(PROMPT, raw=True, max_tokens=4)
    assert "".join(answer) == answer.result["text"]


def test_what_a_user_installed_stays(write_folder):
    folder, _, _ = write_folder("phi", "gptq")
    hub.install()
    try:
        before = tables()
        rung.load(folder, device="cpu", context=64)
        assert before == tables()
    finally:
        hub.uninstall()


def _without(end):
    return lambda weights: {name: value for name, value in weights.items() if not name.endswith(end)}


def _other(weights):
    stem = "gpt_neox.layers.0.mlp.dense_h_to_4h"
    return {name.replace(stem, "other"): value.clone() for name, value in weights.items() if stem in name}


def _only_another(weights):
    plain = {
        name: value for name, value in weights.items() if not name.endswith(("qweight", "qzeros", "scales", "g_idx"))
    }
    return plain | {name: value for name, value in _other(weights).items() if name not in plain}


REFUSED = [
    (
        {"quantization_config": {"quant_method": "gptq", "bits": 8}},
        None,
        BadFile,
        "contradicts the quantization config",
    ),
    ({"quantization_config": {"quant_method": "awq", "bits": 4}}, None, BadFile, "contradicts the quantization config"),
    ({"quantization_config": {"quant_method": "fp8"}}, None, BadFile, "no tensor is"),
    ({"quantization_config": [4]}, None, BadFile, "not an object"),
    ({"intermediate_size": 96}, None, BadFile, r"is \[128, 64\] in the checkpoint, and \[96, 64\] in the model"),
    ({}, _without("layers.1.mlp.dense_h_to_4h.qweight"), BadFile, "dense_h_to_4h.weight lacks its codes"),
    ({}, _without("layers.1.mlp.dense_h_to_4h.scales"), BadFile, "lacks scales"),
    ({}, _only_another, UnknownArchitecture, "no layer of a GPTNeoXForCausalLM holds"),
]


@pytest.mark.parametrize(("settings", "changed", "error", "says"), REFUSED)
def test_contradictions_are_refused(write_folder, settings, changed, error, says):
    folder, _, _ = write_folder("gpt_neox", "gptq")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    if changed:
        weights = changed(load_file(folder / "model.safetensors"))
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    before = tables()
    with pytest.raises(error, match=says):
        rung.load(folder, device="cpu", context=64)
    assert before == tables()


def test_experts_that_no_weight_holds_are_planned_as_floats(write_folder):
    """The columns of one lie in an order of their own."""
    folder, _, _ = write_folder("mixtral", "gptq-ordered")
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("layers.0.block_sparse_moe.experts.2.w3.g_idx"))
    weights[name] = weights[name].flip(0)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    card = open_any(folder)
    experts = {t.name: t.source is not None for t in card.component.tensors if "experts." in t.name}
    assert set(experts.values()) == {True, False}
    assert all(whole == ("layers.1" in name) for name, whole in experts.items())
    network = rung.load(folder, device="cpu", context=64).backend.kept.network
    assert quantized_weights(network).keys() == {t.name for t in card.component.tensors if t.source}


def test_a_simulated_card_and_adapters_beside(write_folder, tmp_path):
    peft = pytest.importorskip("peft")
    folder, reference, _ = write_folder("gpt_neox", "gptq")
    torch.manual_seed(4)
    config = peft.LoraConfig(r=4, init_lora_weights=False, target_modules="all-linear")
    adapted = peft.get_peft_model(reference, config).eval()
    adapted.save_pretrained(tmp_path / "lora")
    want = logits(adapted)
    found = rung.load(folder, device="cpu", context=64, adapters=[tmp_path / "lora"]).logits(IDS)
    assert apart(found, want).median() < 0.05
    with adapted.disable_adapter():
        plain = logits(adapted)
    assert apart(plain, want).min() > 0.2
    with rung.simulate("2080 Ti") as card:
        model = rung.load(folder, device=card.id, context=64)
        assert apart(model.logits(IDS), plain).median() < 0.05
    assert model.plan.dtype == "f16"
