"""LoRA of PEFT on quantized layers: trains, merges, loads and goes back; with ``prepare`` and without."""

import copy
import json
import math

import numpy as np
import peft
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

import rung
from rung import formats
from rung.core.errors import UsageError
from rung.hub.peft import LoraQuantLinear, cost, merge, prepare
from rung.nn import QuantLinear, QuantWeight
from tests.ops.conformance import weight
from tests.support.models import logits_of
from tests.tiny import tiny_model

IDS = torch.tensor([[1, 17, 300, 4, 25, 60]])
KINDS = {"lora": {}, "rslora": {"use_rslora": True}, "dora": {"use_dora": True}}


def quantized(model_type="llama", format="nf4", **options):
    return rung.quantize(tiny_model(model_type, tie_word_embeddings=True, **options), format)


def config(**options):
    return LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", **options)


def plain(config):
    return config


def parts(model):
    return {name: part.clone() for name, part in model.state_dict().items() if ".stored." in name}


def same(one, other):
    strip = [
        {k.replace("base_model.model.", "").replace("base_layer.", ""): v for k, v in d.items()} for d in (one, other)
    ]
    return strip[0].keys() == strip[1].keys() and all(torch.equal(v, strip[1][k]) for k, v in strip[0].items())


def train(model, steps=5):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    losses = []
    for _ in range(steps):
        loss = model.train()(IDS, labels=IDS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def step(ready, dtype, options):
    """Logits with adapters and without, and the gradients of every adapter: two are active where nothing is asked."""
    torch.manual_seed(2)
    model = get_peft_model(quantized().to(dtype), ready(config(init_lora_weights=False, **options)))
    if not options:
        model.add_adapter("second", ready(config(init_lora_weights=False)))
        model.base_model.set_adapter(["default", "second"])
    for name, parameter in model.named_parameters():
        if name.endswith("lora_B.default.bias"):
            nn.init.normal_(parameter)
    torch.manual_seed(3)
    y = model.train()(IDS).logits
    y.float().square().sum().backward()
    found = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
    with model.disable_adapter():
        return {"with": y.detach().double(), "without": logits_of(model, IDS).double(), **found}


@pytest.mark.parametrize(
    "options",
    [{}, {"lora_dropout": 0.3}, {"lora_bias": True}, {"use_dora": True}, {"use_rslora": True}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_a_step_computes_what_pefts_own_layer_does(options):
    """In float32 the same; in bfloat16 as far from it as PEFT's, but for one rounding of what adapters add."""
    want, got = (step(ready, torch.float32, options) for ready in (plain, prepare))
    theirs, ours = (step(ready, torch.bfloat16, options) for ready in (plain, prepare))
    assert len(want) >= 30
    errors = []
    for name, value in want.items():
        assert (got[name] - value).norm() <= 1e-5 * value.norm(), name
        errors.append([float((each[name] - value).norm() / value.norm()) for each in (theirs, ours)])
    of_theirs, of_ours = np.mean(errors, axis=0)
    assert of_ours <= 1.3 * of_theirs


@pytest.mark.parametrize(
    ("model_type", "kind", "ready"),
    [
        *(("llama", kind, ready) for kind in KINDS for ready in (plain, prepare)),
        ("mistral", "lora", prepare),
        ("gemma", "lora", prepare),
    ],
)
def test_the_whole_way(model_type, kind, ready, tmp_path):
    """Load, evaluate, train, merge, unmerge, save, load into a fresh base: every step with the right values."""
    base = quantized(model_type)
    before, want = parts(base), logits_of(base, IDS)
    model = get_peft_model(base, ready(config(**KINDS[kind])))
    wrapped = [layer for layer in model.modules() if isinstance(layer, LoraQuantLinear)]
    assert len(wrapped) == (14 if ready is prepare else 0)
    torch.testing.assert_close(logits_of(model, IDS), want, rtol=1e-4, atol=1e-4)
    losses = train(model)
    assert losses[-1] < losses[0] - 0.3
    assert same(parts(model), before)
    trained = logits_of(model, IDS)
    model.save_pretrained(tmp_path)
    model.merge_adapter()
    assert formats.sqnr(trained.numpy(), logits_of(model, IDS).numpy()) > 8
    assert not same(parts(model), before)
    model.unmerge_adapter()
    if ready is prepare:
        assert same(parts(model), before)
    again = PeftModel.from_pretrained(quantized(model_type), tmp_path)
    assert torch.equal(logits_of(again, IDS), trained)
    merged = again.merge_and_unload()
    assert isinstance(merged.model.layers[0].mlp.up_proj, QuantLinear)
    assert formats.sqnr(trained.numpy(), logits_of(merged, IDS).numpy()) > 8


#: The rungs of each format are checked by value when it is first used, which takes seconds.
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("format", "dtype"),
    [
        *((format, torch.float32) for format in ("nf4", "int8")),
        ("q4_0", torch.bfloat16),
        *(pytest.param(format, torch.float32, marks=SLOW) for format in ("nf4:64:nested", "fp4", "q8_0", "q4_0")),
        pytest.param("nf4", torch.bfloat16, marks=SLOW),
    ],
)
def test_a_merge_without_a_difference_changes_no_bit(format, dtype):
    base = rung.quantize(tiny_model("llama").to(dtype), format)
    before = parts(base)
    logits_of(base, IDS)  # packs, where there is a packing
    for ready in (plain, prepare):
        merged = get_peft_model(base, ready(config())).merge_and_unload()
        assert same(parts(merged), before)
        assert not cost(merged)


def test_merging_says_what_it_costs_and_in_16_bits_costs_nothing(logged):
    model = get_peft_model(quantized(format="int8"), config())
    train(model)
    trained, twin = logits_of(model, IDS), copy.deepcopy(model)
    merged = merge(model)
    assert any("merged into 14 layers, which were encoded again: 4" in record.getMessage() for record in logged)
    assert len(cost(merged)) == 14
    assert min(cost(merged).values()) > 38
    exact = merge(twin, dequantize=True)
    assert not [layer for layer in exact.modules() if isinstance(layer, QuantWeight)]
    assert formats.sqnr(trained.numpy(), logits_of(exact, IDS).numpy()) > 30
    assert type(exact.model.layers[0].mlp.up_proj) is nn.Linear
    with pytest.raises(UsageError, match="LlamaForCausalLM has no adapters"):
        merge(merged)


def test_two_adapters():
    model = get_peft_model(quantized(), prepare(config()))
    model.add_adapter("second", prepare(config(lora_dropout=0.0)))
    first = logits_of(model, IDS)
    model.set_adapter("second")
    train(model, 3)
    second = logits_of(model, IDS)
    assert not torch.equal(first, second)
    model.set_adapter("default")
    assert torch.equal(logits_of(model, IDS), first)
    model.set_adapter("second")
    before = parts(model)
    model.merge_adapter(["default"])
    model.merge_adapter(["second"])
    model.unmerge_adapter()
    assert same(parts(model), before)
    assert torch.equal(logits_of(model, IDS), second)


def test_modules_to_save():
    model = get_peft_model(quantized(), config(modules_to_save=["lm_head"]))
    train(model, 2)
    assert model.lm_head.modules_to_save["default"].weight.requires_grad


def test_an_adapter_that_there_is_not_is_not_merged():
    model = get_peft_model(quantized(), config(init_lora_weights=False))
    with pytest.raises(UsageError, match=r"no adapter 'defualt'.*Did you mean default"):
        merge(model, adapter_names=["defualt"])
    assert isinstance(model.base_model.model.model.layers[0].mlp.up_proj.base_layer, QuantLinear)


def test_a_format_that_is_only_read_trains_and_merges_into_plain_layers():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = QuantLinear(QuantWeight.of(weight(formats.get("q2_k"), 64, 256), torch.float32))

        def forward(self, x):
            return self.up(x)

    x, options = torch.randn(3, 256), {"r": 2, "target_modules": ["up"]}
    model = get_peft_model(Model(), LoraConfig(init_lora_weights=False, **options))
    want = model(x)
    with pytest.raises(UsageError, match=r"stored in q2_k.*\n.*\n.*\n.*merge\(model, dequantize=True\)"):
        model.merge_adapter()
    merged = merge(model, dequantize=True)
    assert (merged(x) - want).norm() < 1e-5 * want.norm()  # single values near zero are sums of large ones


#: Kinds of adapters beside LoRA, and what they want to be told.
OTHERS = {
    "IA3": {"feedforward_modules": ["down_proj"], "target_modules": ["k_proj", "down_proj"]},
    "Vera": {"r": 4, "target_modules": ["q_proj", "o_proj"]},
    "LoHa": {"r": 4},
    "LoKr": {"r": 4},
    "OFT": {"oft_block_size": 8, "r": 0},
    "FourierFT": {"n_frequency": 10},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_train_and_merge(kind):
    options = {"target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"} | OTHERS[kind]

    def trained():
        torch.manual_seed(0)
        model = get_peft_model(quantized("llama"), getattr(peft, f"{kind}Config")(**options))
        train(model, steps=3)
        return model

    before = logits_of(quantized("llama"), IDS)
    want = trained()(IDS).logits.detach()  # in training mode, which quantizes no activations
    assert (want - before).norm() > 1e-3 * want.norm()
    assert (logits_of(merge(trained(), dequantize=True), IDS) - want).norm() < 2e-4 * want.norm()
    merged = merge(trained())
    assert merged.model.layers[0].self_attn.q_proj.stored.format.name == "nf4:64"
    assert (logits_of(merged, IDS) - want).norm() < 0.3 * want.norm()  # encoded again


@pytest.mark.parametrize(("base", "changes"), [({"hidden_size": 128}, {}), ({}, {"r": 8})])
def test_an_adapter_of_another_base_or_rank_is_refused(base, changes, tmp_path):
    """By PEFT, on rung's layers as on plain ones."""
    get_peft_model(quantized(), config()).save_pretrained(tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(RuntimeError, match=r"size mismatch for base_model\.model\.model\.layers\.0"):
        PeftModel.from_pretrained(quantized(**base), tmp_path)


def test_the_int8_merge_of_the_founding_report_on_a_v100():
    with rung.simulate("v100"):
        model = rung.quantize(tiny_model("llama").half().to("cuda"), "int8")
        model = get_peft_model(model, config(init_lora_weights=False))
        with torch.no_grad():
            want = model.eval()(IDS.to("cuda")).logits.float().cpu()
            got = model.merge_and_unload()(IDS.to("cuda")).logits.float().cpu()
    layers = 14  # each was encoded once more; errors of so many add up (docs/founding-five.md)
    floor = formats.get("int8").floor_db - 10 * math.log10(layers)
    assert formats.sqnr(want.numpy(), got.numpy()) > floor
