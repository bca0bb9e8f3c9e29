"""transformers with other quantizers' checkpoints, after ``install()``: the same values, saved, trained, put back."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GptOssConfig, GptOssForCausalLM
from transformers.quantizers import auto

import rung
from rung.core.errors import UsageError
from rung.hub import transformers as hub
from rung.nn import QuantExperts, QuantLinear
from tests.foreign import VARIANTS, configure, write
from tests.tiny import tiny_checkpoint

IDS = torch.tensor([[1, 17, 300, 4, 25, 60]])


@pytest.fixture
def installed():
    hub.install()
    yield
    hub.uninstall()


def load(folder, **options):
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", **options
    ).eval()
    assert not [name for name, part in model.named_parameters() if part.is_meta]
    return model


def logits(model):
    with torch.no_grad():
        return model(IDS.to(model.device)).logits.cpu()


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("ct-int4", "fp8", "ct-fp8-block", "hqq", "nf4-nested")]
ONE_EACH = ["gptq-ordered", "awq", "ct-fp8", "llm-int8", *SLOW]


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_checkpoint_loads_computes_is_saved_and_decoded(tmp_path, installed, name):
    pytest.importorskip(VARIANTS[name].package or "torch")
    expected = write(tmp_path / "theirs", VARIANTS[name])
    plain = tiny_checkpoint(tmp_path / "plain", "llama", "bfloat16")
    with torch.no_grad():
        for key, value in expected.items():
            plain.get_parameter(key).copy_(value)
    model = load(tmp_path / "theirs")
    for key, value in expected.items():
        layer = model.get_submodule(key.removesuffix(".weight"))
        assert isinstance(layer, QuantLinear)
        assert torch.equal(layer.stored.decode(torch.float32).to(value.dtype), value)
    assert model.lm_head.weight.dtype == model.dtype == torch.float32
    ours = logits(model)
    assert (ours - logits(plain)).norm() < 0.02 * logits(plain).norm()  # rungs may quantize activations
    model.save_pretrained(tmp_path / "ours")
    saved = json.loads((tmp_path / "ours" / "config.json").read_text())["quantization_config"]
    assert saved["quant_method"] == "rung"
    again = load(tmp_path / "ours")
    assert torch.equal(logits(again), ours)
    model.dequantize()
    assert type(model.model.layers[1].mlp.up_proj) is torch.nn.Linear
    difference = logits(model) - logits(plain)  # packages round to 16 bits what is decoded to 32 here
    assert difference.norm() < 0.005 * logits(plain).norm()


def test_nothing_is_replaced_unasked_and_all_is_put_back():
    before = dict(auto.AUTO_QUANTIZER_MAPPING), dict(auto.AUTO_QUANTIZATION_CONFIG_MAPPING)
    hub.install()
    hub.install()
    changed = {name for name, quantizer in auto.AUTO_QUANTIZER_MAPPING.items() if quantizer is not before[0][name]}
    assert changed == {
        *("awq", "bitsandbytes_4bit", "bitsandbytes_8bit", "compressed-tensors", "fp8", "gptq", "hqq", "mxfp4"),
    }
    hub.uninstall()
    hub.uninstall()
    assert before == (auto.AUTO_QUANTIZER_MAPPING, auto.AUTO_QUANTIZATION_CONFIG_MAPPING)


def test_bitsandbytes_quantizes_while_loading(tmp_path, installed):
    tiny_checkpoint(tmp_path, "llama")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    model = load(tmp_path, quantization_config=config)
    assert model.model.layers[0].mlp.up_proj.stored.format.name == "nf4:64:nested"
    model = load(tmp_path, quantization_config=BitsAndBytesConfig(load_in_8bit=True))
    assert model.model.layers[0].mlp.up_proj.stored.format.name == "llm_int8"
    assert model.model.layers[0].mlp.up_proj.threshold == 6.0  # their default
    model = load(tmp_path, quantization_config=BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=2.5))
    model.save_pretrained(tmp_path / "saved")
    assert load(tmp_path / "saved").model.layers[0].mlp.up_proj.threshold == 2.5
    with pytest.raises(UsageError, match="keeps the weights in 16 bits"):
        load(tmp_path, quantization_config=BitsAndBytesConfig(load_in_8bit=True, llm_int8_has_fp16_weight=True))


def test_gradients_pass_and_a_merge_is_refused_where_rung_does_not_write(tmp_path, installed):
    peft = pytest.importorskip("peft")
    write(tmp_path, VARIANTS["awq"])
    model = peft.get_peft_model(load(tmp_path).train(), peft.LoraConfig(r=4, target_modules=["q_proj"]))
    model(IDS, labels=IDS).loss.backward()
    grads = [p.grad for p in model.parameters() if p.requires_grad]
    assert grads
    assert any(grad is not None and grad.abs().sum() > 0 for grad in grads)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.01)
    with pytest.raises(UsageError, match="reads and does not write") as caught:
        model.merge_and_unload()
    assert "dequantize=True" in caught.value.ways_out[0]


@pytest.mark.parametrize("card", ["v100", "p2200"])
def test_cards_without_these_formats_run_them(tmp_path, installed, card):
    for name in ("gptq-ordered", "ct-fp8-block", "nf4-nested"):
        write(tmp_path / name, VARIANTS[name])
        model = load(tmp_path / name)
        expected = logits(model.train())
        with rung.simulate(card):
            got = logits(model.to("cuda"))
        assert (got - expected).norm() < 0.01 * expected.norm()


def gpt_oss(folder):
    """A tiny gpt-oss with experts in mxfp4, and their values as transformers decodes them: [experts, in, out]."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    config = GptOssConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    torch.manual_seed(0)
    model = GptOssForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    for name in [name for name in stored if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inner, outer = stored.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outer, inner // 32, 16), dtype=torch.uint8)
        scales = torch.randint(122, 126, (experts, outer, inner // 32), dtype=torch.uint8)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        with torch.no_grad():
            model.get_parameter(name).copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    configure(folder, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]})
    return model


def test_mxfp4_experts_of_gpt_oss(tmp_path, installed):
    reference = gpt_oss(tmp_path)
    model = load(tmp_path)
    layer = model.model.layers[0].mlp.experts
    assert isinstance(layer, QuantExperts)
    assert layer.gate_up_proj[0].format.name == "mxfp4"
    want = reference.model.layers[0].mlp.experts.gate_up_proj
    assert torch.equal(torch.stack([w.decode() for w in layer.gate_up_proj]), want.transpose(1, 2))
    model.train()
    assert torch.allclose(logits(model), logits(reference), atol=1e-4)
    model.eval().dequantize()
    assert torch.equal(model.model.layers[0].mlp.experts.gate_up_proj, want)
