"""A tied model in nf4 through transformers, PEFT and bitsandbytes: every step, on a processor that repacks weights."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

bnb = pytest.importorskip("bitsandbytes")
import bitsandbytes.nn.modules as peer  # noqa: E402

from rung.hub.bitsandbytes import install, uninstall  # noqa: E402
from tests.hub.bitsandbytes import replaceable  # noqa: E402
from tests.support.models import logits_of, read_weight  # noqa: E402
from tests.tiny import tiny_model  # noqa: E402

pytestmark = replaceable

IDS = torch.tensor([[1, 17, 30, 4, 25, 60]])


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    for holder in (peer, bnb.functional):
        monkeypatch.setattr(holder, "has_avx512bf16", lambda: True)
    install()
    yield
    uninstall()


def adapted(model, **options):
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", **options)
    return get_peft_model(model, lora)


@pytest.mark.parametrize(
    "model_type", ["llama", *(pytest.param(t, marks=pytest.mark.slow) for t in ("mistral", "gemma"))]
)
def test_every_step(model_type, tmp_path):
    tiny_model(model_type, tie_word_embeddings=True).save_pretrained(tmp_path / "plain")
    four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")

    def load(folder="plain"):
        config = {"quantization_config": four_bits} if folder == "plain" else {}
        return AutoModelForCausalLM.from_pretrained(tmp_path / folder, dtype=torch.float32, **config)

    model = load()
    layer = model.model.layers[0].mlp.up_proj
    assert isinstance(layer, bnb.nn.Linear4bit)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    first, bits = logits_of(model, IDS), layer.weight.data.clone()

    def decoded(of):
        return bnb.functional.dequantize_4bit(of.weight.data, of.weight.quant_state).to(torch.float32)

    assert torch.equal(layer.weight.data, bits)
    torch.testing.assert_close(read_weight(layer), decoded(layer), rtol=1e-5, atol=1e-6)
    for training in (True, False):
        inputs = torch.randn(2, layer.in_features).requires_grad_()
        layer.train(training)(inputs).sum().backward()
        torch.testing.assert_close(inputs.grad, decoded(layer).sum(0).expand_as(inputs), rtol=1e-4, atol=1e-5)

    same = adapted(model).merge_and_unload()  # an adapter without a difference
    assert torch.equal(logits_of(same, IDS), first)

    trained = adapted(load(), init_lora_weights=True)
    optimizer = torch.optim.AdamW([p for p in trained.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(4):
        losses.append(trained.train()(IDS, labels=IDS).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
        logits_of(trained, IDS)  # evaluated in between
    assert losses[-1] < losses[0]
    target = trained.base_model.model.model.layers[0].mlp.up_proj
    expected = decoded(target.base_layer) + target.get_delta_weight("default")
    before = logits_of(trained, IDS)
    trained.merge_adapter()
    close = float((read_weight(target.base_layer) - expected).detach().norm() / expected.detach().norm())
    assert close < 0.12  # what encoding in nf4 costs
    trained.unmerge_adapter()
    assert float((logits_of(trained, IDS) - before).norm() / before.norm()) < 0.3
    merged = trained.merge_and_unload()
    torch.testing.assert_close(
        read_weight(merged.model.layers[0].mlp.up_proj),
        decoded(merged.model.layers[0].mlp.up_proj),
        rtol=1e-5,
        atol=1e-6,
    )

    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(logits_of(load("merged"), IDS), logits_of(merged, IDS))
