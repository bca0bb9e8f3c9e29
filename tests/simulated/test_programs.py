"""Programs of transformers that say ``.cuda()`` run unchanged, and compute what they compute without it."""

from __future__ import annotations

import pytest
import torch

import rung
from tests.tiny import tiny_checkpoint

transformers = pytest.importorskip("transformers")
IDS = torch.tensor([[1, 5, 9, 7]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    tiny_checkpoint(path, "llama")
    return path


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def test_load_and_generate(folder):
    model = load(folder).eval()
    want, text = model(IDS).logits, model.generate(IDS, max_new_tokens=6, do_sample=False)
    with rung.simulate("RTX 2080 Ti"):
        there = load(folder).cuda().eval()
        assert there.device == torch.device("cuda:0")
        got = there(IDS.cuda()).logits
        assert torch.equal(got.cpu(), want)
        assert torch.equal(there.generate(IDS.cuda(), max_new_tokens=6, do_sample=False).cpu(), text)
        half = load(folder, dtype=torch.float16).cuda()
        assert half.generate(IDS.cuda(), max_new_tokens=4, do_sample=True).device.type == "cuda"
        held = sum(p.numel() * 2 for p in half.parameters()) + sum(p.numel() * 4 for p in there.parameters())
        assert torch.cuda.memory_allocated() >= held


def test_device_map(folder):
    if not transformers.utils.is_accelerate_available():
        pytest.skip("transformers wants accelerate for device_map")
    with rung.simulate("RTX 2080 Ti"):
        there = load(folder, device_map="cuda")
        assert {p.device for p in there.parameters()} == {torch.device("cuda:0")}
        assert there(IDS.cuda()).logits.device.type == "cuda"


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
def test_a_training_step_in_mixed_precision(folder, checkpointing):
    with rung.simulate("V100"):
        model = load(folder).to("cuda").train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda", init_scale=8.0)
        losses = []
        for _ in range(3):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(IDS.cuda(), labels=IDS.cuda()).loss
            assert loss.dtype == torch.float32
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[-1] < losses[0]


def test_a_model_that_does_not_fit_is_refused_while_it_loads(folder):
    with rung.simulate("RTX 2080 Ti", memory="401MB"), pytest.raises(torch.cuda.OutOfMemoryError):
        load(folder).cuda()
