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
        size = sum(p.numel() * 2 for p in half.parameters()) + sum(p.numel() * 4 for p in there.parameters())
        assert torch.cuda.memory_allocated() >= size


@pytest.mark.parametrize("where", ["cuda", "auto", 0, {"": "cuda:0"}], ids=str)
def test_device_map(folder, where):
    pytest.importorskip("accelerate")
    with rung.simulate("RTX 2080 Ti"):
        there = load(folder, device_map=where)
        assert {p.device for p in there.parameters()} == {torch.device("cuda:0")}
        assert there(IDS.cuda()).logits.device.type == "cuda"


def test_device_map_over_two_cards_and_the_processor(folder):
    """As accelerate places it: what fits on each, hooks move what flows, values are those of one device."""
    pytest.importorskip("accelerate")
    model = load(folder).eval()
    want = model(IDS).logits
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    with rung.simulate("3090", "3060"):
        there = load(folder, device_map="auto", max_memory={0: size // 2, 1: size, "cpu": size}).eval()
        assert {0, 1} <= set(there.hf_device_map.values())
        assert torch.equal(there(IDS.cuda()).logits.cpu(), want)
        assert torch.cuda.memory_allocated(1) > 0
        assert there.generate(IDS.cuda(), max_new_tokens=3, do_sample=False).shape == (1, 7)


def test_what_transformers_asks_once_and_keeps_is_asked_again():
    there = transformers.utils.is_torch_cuda_available()
    with rung.simulate("RTX 2080 Ti"):
        assert transformers.utils.is_torch_cuda_available()
    assert transformers.utils.is_torch_cuda_available() is there


def test_an_adapter_is_trained_and_merged(folder):
    """The whole PEFT program: LoRA on a model on the card, a step in f16, saved, loaded and merged."""
    peft = pytest.importorskip("peft")
    with rung.simulate("V100"):
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = peft.get_peft_model(load(folder).cuda(), config)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
        losses = []
        for _ in range(3):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(input_ids=IDS.cuda(), labels=IDS.cuda()).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        model.save_pretrained(folder / "adapter")
        again = peft.PeftModel.from_pretrained(load(folder).cuda(), folder / "adapter")
        assert {p.device.type for p in again.parameters()} == {"cuda"}
        want = model.eval()(IDS.cuda()).logits
        merged = again.merge_and_unload().eval()
        assert torch.allclose(merged(IDS.cuda()).logits, want, atol=1e-4)


@pytest.mark.parametrize("cards", [("V100",), ("3090", "3060")], ids="+".join)
def test_the_trainer_of_transformers_finds_the_cards(folder, tmp_path, cards):
    accelerate = pytest.importorskip("accelerate")
    examples = [{"input_ids": IDS[0], "labels": IDS[0]}] * 4
    try:
        with rung.simulate(*cards):
            arguments = transformers.TrainingArguments(
                tmp_path, max_steps=2, per_device_train_batch_size=2, fp16=True, report_to=[], save_strategy="no",
                logging_steps=1, disable_tqdm=True,
            )  # fmt: skip
            trainer = transformers.Trainer(load(folder), arguments, train_dataset=examples)
            done = trainer.train()
            assert done.global_step == 2
            assert trainer.model.device == torch.device("cuda:0")
            assert torch.isfinite(torch.tensor(done.training_loss))
            assert all(torch.cuda.max_memory_allocated(index) > 0 for index in range(len(cards)))
    finally:
        accelerate.state.AcceleratorState._reset_state(True)


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
