"""Tied models in nf4 by rung's own layers: every step from loading to saving a merge, by the values layers give."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

import rung
from rung import formats
from rung.hub.peft import prepare
from rung.nn import QuantLinear
from tests.support.models import logits_of
from tests.tiny import tiny_model

IDS = torch.tensor([[1, 17, 30, 4, 25, 60]])


def read(layer, training=True):
    """The values of a layer through its forward; in training exact ones."""
    with torch.no_grad():
        return layer.train(training)(torch.eye(layer.in_features)).T


def parts(model):
    return [part.clone() for name, part in model.named_parameters() if ".stored." in name]


def same(one, other):
    return len(one) == len(other) > 0 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def adapted(model):
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, prepare(lora))


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma"])
def test_every_step(model_type, tmp_path):
    plain = tiny_model(model_type, tie_word_embeddings=True)
    plain.save_pretrained(tmp_path / "plain")

    def load(folder="plain"):
        config = {"quantization_config": rung.QuantizationConfig("nf4")} if folder == "plain" else {}
        return AutoModelForCausalLM.from_pretrained(tmp_path / folder, dtype=torch.float32, **config)

    def layer_of(model):
        return model.model.layers[0].mlp.up_proj

    model = load()
    layer = layer_of(model)
    assert isinstance(layer, QuantLinear)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    encoded = formats.encode(layer_of(plain).weight.detach().numpy(), formats.get("nf4"))
    want = torch.from_numpy(formats.decode(encoded))
    assert torch.equal(read(layer), want)
    before, first = parts(model), logits_of(model, IDS)
    assert formats.sqnr(logits_of(plain, IDS).numpy(), first.numpy()) > 10
    assert formats.sqnr(want.numpy(), read(layer, training=False).numpy()) > 35  # int8 activations and codebook
    assert torch.equal(read(layer), want)  # evaluated or not
    assert torch.equal(layer.dequantize().weight, want)
    for training in (True, False):
        inputs = torch.randn(2, layer.in_features).requires_grad_()
        layer.train(training)(inputs).sum().backward()
        torch.testing.assert_close(inputs.grad, want.sum(0).expand_as(inputs), rtol=1e-4, atol=1e-5)

    unchanged = adapted(model).merge_and_unload()  # an adapter without a difference
    assert same(parts(unchanged), before)
    assert torch.equal(logits_of(unchanged, IDS), first)

    trained = adapted(load())
    optimizer = torch.optim.AdamW([p for p in trained.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(4):
        losses.append(trained.train()(IDS, labels=IDS).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
        logits_of(trained, IDS)  # evaluated in between
    assert losses[-1] < losses[0]
    assert same(parts(trained), before)
    target = layer_of(trained.base_model.model)
    expected = (want + target.get_delta_weight("default")).detach()
    apart = logits_of(trained, IDS)
    trained.merge_adapter()
    assert formats.sqnr(expected.numpy(), read(target.base_layer).numpy()) > formats.get("nf4").floor_db - 3
    assert not torch.equal(read(target.base_layer), want)
    trained.unmerge_adapter()
    assert same(parts(trained), before)
    assert torch.equal(logits_of(trained, IDS), apart)

    merged = trained.merge_and_unload()
    values, last = read(layer_of(merged)), logits_of(merged, IDS)
    merged.save_pretrained(tmp_path / "merged")
    again = load("merged")
    assert again.lm_head.weight is again.get_input_embeddings().weight
    assert same(parts(again), parts(merged))
    assert torch.equal(read(layer_of(again)), values)
    assert torch.equal(logits_of(again, IDS), last)
