"""GPT-2, whose layers keep their weights as [in, out]: held, saved, loaded, merged and given back as they were."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

import rung
from rung.engine.load import load as run
from rung.hub import peft
from rung.hub import transformers as hub
from rung.nn import QuantLinear
from tests import foreign
from tests.support.models import load_causal, logits_of
from tests.tiny_pipelines import tokenizer

IDS = torch.tensor([[1, 17, 300, 4, 25, 60]])


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    sizes = {"vocab_size": 320, "n_positions": 256, "n_embd": 64, "n_layer": 2, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=1))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def apart(found, expected):
    return float((found - expected).norm() / expected.norm())


def layers(model):
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, QuantLinear)}


def decoded(model):
    """A plain network with the decoded weights, turned here."""
    plain = GPT2LMHeadModel(model.config).eval()
    plain.load_state_dict({n: v for n, v in model.state_dict().items() if ".stored." not in n}, strict=False)
    for name, layer in layers(model).items():
        plain.get_submodule(name).weight.data = layer.stored.decode(torch.float32).T
    return plain


def test_a_network_is_quantized_saved_loaded_and_run(base, tmp_path):
    model = load_causal(base, quantization_config=rung.QuantizationConfig("q8_0", skip="h.1.attn"))
    assert len(layers(model)) == 6
    assert apart(logits_of(model, IDS), logits_of(load_causal(base), IDS)) < 0.02
    other = rung.quantize(load_causal(base), "q8_0", skip="h.1.attn")
    assert torch.equal(logits_of(other, IDS), logits_of(model, IDS))
    model.save_pretrained(tmp_path / "saved")
    tokenizer().save_pretrained(tmp_path / "saved")
    again = load_causal(tmp_path / "saved")
    assert torch.equal(logits_of(again, IDS), logits_of(model, IDS))
    ran = run(str(tmp_path / "saved"), device="cpu", context=64)
    assert apart(ran.logits(IDS[0].tolist()), logits_of(model, IDS)[0]) < 0.02
    formats = {tensor.name: (tensor.format, tensor.shape) for tensor in ran.card.component.tensors}
    assert formats["transformer.h.0.attn.c_attn.weight"] == ("q8_0", (192, 64))


def test_a_copy_of_what_another_quantizer_stored_loads_without_it(base, tmp_path):
    load_causal(base).save_pretrained(tmp_path / "stored")
    foreign.store(
        tmp_path / "stored", foreign.VARIANTS["gptq"], lambda name: name.endswith("0.attn.c_proj.weight"), True
    )
    hub.install()
    try:
        model = load_causal(tmp_path / "stored")
    finally:
        hub.uninstall()
    assert len(layers(model)) == 1
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits_of(load_causal(tmp_path / "saved"), IDS), logits_of(model, IDS))


def test_plain_layers_come_back_turned(base, tmp_path):
    model = load_causal(base, quantization_config=rung.QuantizationConfig("q8_0"))
    want = logits_of(decoded(model), IDS)
    model.dequantize()
    assert isinstance(model.transformer.h[0].attn.c_proj, Conv1D)
    torch.testing.assert_close(logits_of(model, IDS), want, rtol=1e-4, atol=1e-4)
    model.save_pretrained(tmp_path / "plain")
    torch.testing.assert_close(logits_of(load_causal(tmp_path / "plain"), IDS), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_merge(base, dora):
    def adapted():
        torch.manual_seed(5)
        model = load_causal(base, quantization_config=rung.QuantizationConfig("q8_0"))
        config = LoraConfig(r=4, target_modules=["c_attn", "c_proj"], use_dora=dora, init_lora_weights=False)
        return get_peft_model(model, config).eval()

    want = logits_of(adapted(), IDS)
    assert apart(logits_of(peft.merge(adapted()), IDS), want) < 0.05
    plain = peft.merge(adapted(), dequantize=True)
    assert isinstance(plain.transformer.h[0].mlp.c_proj, Conv1D)
    assert apart(logits_of(plain, IDS), want) < 0.02
