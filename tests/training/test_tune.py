"""``rung tune``: trains, stops and goes on with the same result, and says what is wrong."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import rung
from rung.core.errors import BadFile, ContextTooLong, DiskFull, DoesNotFit, OutOfMemory, UsageError
from rung.hardware import catalog
from rung.hub import transformers as hub
from rung.training.fitting import fit
from rung.training.tune import STATE, Options, last_checkpoint, tune
from tests import foreign
from tests.training.rows import chat_folder, question, write

pytest.importorskip("trl")
OPTIONS = Options(format="f32", rank=4, epochs=2, learning_rate=1e-2, batch=4, max_length=64, dropout=0.0)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A base, its data, and an adapter that was trained without interruption."""
    folder = tmp_path_factory.mktemp("models")
    chat_folder(folder / "base")
    write(folder / "data.jsonl", *map(question, range(12)), "{")
    notes = []
    run(folder, folder / "whole", on_note=notes.append)
    return folder, notes


def run(folder, out, options=OPTIONS, data=None, **more):
    return tune(str(folder / "base"), data or folder / "data.jsonl", out, options, device="cpu", **more)


def weights(folder):
    return load_file(Path(folder) / "adapter_model.safetensors")


def same(one, other):
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.allclose(first[n], second[n], atol=1e-5) for n in first)


def test_a_base_that_rung_quantized_is_trained_as_it_is_stored(tuned, tmp_path):
    from rung.conversion import quantize, writing
    from rung.models.open import open_card

    folder, _ = tuned
    job = quantize.quantizing(open_card(folder / "base"), "rung", "q8_0", {})
    writing.write(job, tmp_path / "base", 1)
    options = Options(rank=4, epochs=1, learning_rate=1e-2, batch=4, max_length=64)
    assert run(tmp_path, tmp_path / "out", options, data=folder / "data.jsonl").steps == 3
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    assert base.model.layers[0].mlp.up_proj.stored.format.name == "q8_0"
    ids = torch.tensor([[1, 8, 15, 3, 40]])
    with torch.no_grad():
        plain = base.eval()(ids).logits[0]
        want = PeftModel.from_pretrained(base, tmp_path / "out").eval()(ids).logits[0]
    assert (plain - want).norm() > 0.05 * want.norm()
    model = rung.load(str(tmp_path / "base"), device="cpu", context=64, adapters=[str(tmp_path / "out")])
    assert (model.logits(ids[0].tolist()) - want).norm() < 0.02 * want.norm()
    with pytest.raises(UsageError, match="was asked for in nf4, and is quantized already") as refused:
        run(tmp_path, tmp_path / "other", Options(format="nf4"), data=folder / "data.jsonl")
    assert refused.value.ways_out[0] == "leave out --format"


def test_a_base_that_others_quantized_needs_no_package_of_theirs(tuned, tmp_path):
    folder, _ = tuned
    shutil.copytree(folder / "base", tmp_path / "base")
    variant = foreign.VARIANTS["awq"]
    foreign.store(tmp_path / "base", variant, lambda name: name.endswith("0.mlp.up_proj.weight"))
    notes = []
    options = Options(rank=4, epochs=1, learning_rate=1e-2, batch=4, max_length=64, targets="up_proj")
    assert run(tmp_path, tmp_path / "out", options, data=folder / "data.jsonl", on_note=notes.append).steps == 3
    ids = list(range(6, 30))
    model = rung.load(str(tmp_path / "base"), device="cpu", context=64, adapters=[str(tmp_path / "out")])
    before = rung.load(str(tmp_path / "base"), device="cpu", context=64).logits(ids)
    hub.install()
    try:
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    finally:
        hub.uninstall()
    with torch.no_grad():
        want = PeftModel.from_pretrained(base, tmp_path / "out").eval()(torch.tensor([ids])).logits[0]
    assert (before - want).norm() > 0.05 * want.norm()
    assert (model.logits(ids) - want).norm() < 0.02 * want.norm()
    with pytest.raises(UsageError, match="was asked for in nf4, and is quantized already"):
        run(tmp_path, tmp_path / "other", Options(format="nf4"), data=folder / "data.jsonl")


def test_the_whole_way(tuned, tmp_path):
    """QLoRA: trains, says what it does, and the adapter runs in PEFT and beside the base in rung."""
    folder, _ = tuned
    notes, logs = [], []
    done = run(
        folder,
        tmp_path / "out",
        Options(rank=4, epochs=3, learning_rate=1e-2, batch=4, max_length=64),
        on_note=notes.append,
        on_loss=lambda *log: logs.append(log),
    )
    assert done.steps == 9
    assert not done.stopped
    assert done.losses[-1][1] < done.losses[0][1] / 2
    assert "1 row left out: not JSON (line 13)" in notes
    assert "12 conversations: loss on the answers of the assistant alone" in notes
    assert any("every layer kept · 4 rows a step" in note for note in notes)
    assert [log[:2] for log in logs if "loss" in log[2]] == [(step, 9) for step in range(1, 10)]
    assert ElementTree.parse(tmp_path / "out" / "loss.svg").getroot().tag.endswith("svg")
    base = AutoModelForCausalLM.from_pretrained(folder / "base")
    ids = list(range(6, 30))
    with torch.no_grad():
        want = PeftModel.from_pretrained(base, tmp_path / "out").eval()(torch.tensor([ids])).logits[0]
    ours = rung.load(str(folder / "base"), format="f32", device="cpu", context=64, adapters=[tmp_path / "out"])
    torch.testing.assert_close(ours.logits(ids), want, rtol=1e-4, atol=1e-3)
    with pytest.raises(UsageError, match="another run"):
        run(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("card", "device"), [("p2200", None), pytest.param("2x3090", "cuda:1", marks=pytest.mark.slow)]
)
def test_a_simulated_card_trains_as_the_processor(card, device, tuned, tmp_path):
    """Without TRL's kernels in Triton, and on the card that was asked for, not on all of them."""
    from trl.kernels import chunked_logprob

    folder, _ = tuned
    before, notes = chunked_logprob._TRITON_AVAILABLE, []
    with rung.simulate(card):
        data, out = folder / "data.jsonl", tmp_path / "out"
        done = tune(str(folder / "base"), data, out, OPTIONS, device=device, on_note=notes.append)
        used = [torch.cuda.max_memory_allocated(index) > 0 for index in range(torch.cuda.device_count())]
    assert used == [index == (1 if device else 0) for index in range(len(used))]
    assert done.steps == 6
    assert any(catalog.several(card)[0].split()[-1].upper() in note.upper() for note in notes)
    assert same(tmp_path / "out", folder / "whole")
    assert chunked_logprob._TRITON_AVAILABLE is before


def test_rows_that_are_put_together_do_not_see_each_other(tuned, tmp_path):
    """All rows in one step: the same tokens have the same loss, in fewer rows, and train the same."""
    folder, _ = tuned
    apart = run(folder, tmp_path / "apart", Options(**{**vars(OPTIONS), "batch": 12}))
    packed = run(folder, tmp_path / "packed", Options(**{**vars(OPTIONS), "batch": 4, "packing": True}))
    assert apart.steps == packed.steps == 2
    for (_, one), (_, other) in zip(apart.losses, packed.losses, strict=True):
        assert other == pytest.approx(one, rel=1e-4)
    assert same(tmp_path / "apart", tmp_path / "packed")


def test_the_advised_way_out_is_open_in_the_same_folder(tuned, tmp_path):
    """A run that was refused has claimed nothing; one that has trained has."""
    folder, _ = tuned
    rows = {"max_length": 48, "eval_split": 0.1, "epochs": 1}
    with pytest.raises(DoesNotFit):
        run(folder, tmp_path / "out", memory="1MB")
    with pytest.raises(UsageError, match="leaves nothing on one side"):
        run(folder, tmp_path / "out", Options(**{**vars(OPTIONS), **rows, "eval_split": 0.001}))
    assert run(folder, tmp_path / "out", Options(**{**vars(OPTIONS), **rows})).steps == 3
    with pytest.raises(UsageError, match="another run"):
        run(folder, tmp_path / "out")


def test_another_model_of_the_same_name_is_another_run(tuned, tmp_path):
    folder, _ = tuned
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(folder / "base", tmp_path / "elsewhere" / "base")
    with pytest.raises(UsageError, match="another run"):
        tune(str(tmp_path / "elsewhere" / "base"), folder / "data.jsonl", folder / "whole", OPTIONS, device="cpu")


def test_a_run_that_was_killed_goes_on_with_the_same_result(tuned, tmp_path):
    class Killed(BaseException):
        pass

    def die(step, last, logs):
        if step == 5:
            raise Killed

    folder, _ = tuned
    with pytest.raises(Killed):
        run(folder, tmp_path / "out", on_loss=die)
    checkpoints = tmp_path / "out" / "checkpoints"
    shutil.copytree(checkpoints / "checkpoint-4", checkpoints / "checkpoint-5", dirs_exist_ok=True)
    (checkpoints / "checkpoint-5" / "trainer_state.json").unlink()  # it died while it wrote this one
    notes = []
    done = run(folder, tmp_path / "out", on_note=notes.append)
    assert "goes on after checkpoint-4" in notes
    assert done.steps == 6
    assert [step for step, _ in done.losses] == [1, 2, 3, 4, 5, 6]
    assert same(tmp_path / "out", folder / "whole")
    with pytest.raises(UsageError, match="this run, which is finished"):
        run(folder, tmp_path / "out")


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_call_goes_on(tuned, tmp_path):
    folder, _ = tuned
    handler = signal.getsignal(signal.SIGINT)
    done = run(folder, tmp_path / "out", on_loss=lambda step, *_: step == 2 and os.kill(os.getpid(), signal.SIGINT))
    assert signal.getsignal(signal.SIGINT) is handler
    assert done.stopped
    assert done.steps in (2, 3)
    assert weights(tmp_path / "out")
    assert not run(folder, tmp_path / "out").stopped
    assert same(tmp_path / "out", folder / "whole")


@pytest.fixture
def full(monkeypatch):
    """A card that holds so many rows at a time."""
    import rung.training.setup as base

    load = base.load_base

    def arrange(most):
        def loaded(*arguments):
            model = load(*arguments)
            forward = model.model.forward

            def limited(*args, **options):
                if len(options["input_ids"]) > most:
                    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
                return forward(*args, **options)

            model.model.forward = limited
            return model

        monkeypatch.setattr(base, "load_base", loaded)

    return arrange


def test_out_of_memory_goes_on_in_smaller_pieces_with_the_same_result(tuned, full, tmp_path):
    folder, _ = tuned
    full(1)
    notes = []
    run(folder, tmp_path / "out", on_note=notes.append)
    assert [note for note in notes if "out of memory" in note] == [
        "out of memory: 4 → 2 rows at a time, with the same result",
        "out of memory: 2 → 1 rows at a time, with the same result",
    ]
    assert same(tmp_path / "out", folder / "whole")


@pytest.mark.slow
def test_out_of_memory_with_a_single_row_says_what_helps(tuned, full, tmp_path):
    full(0)
    with pytest.raises(OutOfMemory, match=r"with a single row at a time[\s\S]*--max-length"):
        run(tuned[0], tmp_path / "out")


@pytest.mark.parametrize("where", ["loss", pytest.param("gradient", marks=pytest.mark.slow)])
def test_nan_stops_before_it_reaches_the_adapter(where, tuned, monkeypatch, tmp_path):
    from rung.training import trainer

    original = trainer.SFTTrainer.compute_loss

    def poisoned(self, *arguments, **options):
        loss = original(self, *arguments, **options)
        if self.state.global_step == 3 and where == "loss":
            return loss * float("nan")
        if self.state.global_step == 3:
            loss.register_hook(lambda gradient: gradient * float("inf"))
        return loss

    monkeypatch.setattr(trainer.SFTTrainer, "compute_loss", poisoned)
    folder, _ = tuned
    with pytest.raises(trainer.Diverged, match=rf"After 3 steps .* {where} is no number"):
        run(folder, tmp_path / "out")
    assert all(torch.isfinite(value).all() for value in weights(tmp_path / "out").values())


def test_the_step_that_made_the_loss_nan_is_taken_back(tuned, tmp_path):
    """A step of 1e30 leaves an adapter of finite numbers that no model computes with."""
    from rung.training.trainer import Diverged

    with pytest.raises(Diverged, match=r"After 1 step the loss is no number[\s\S]*kept as it was after 0 steps"):
        run(tuned[0], tmp_path / "out", replace(OPTIONS, learning_rate=1e30))
    assert all(value.abs().max() < 1 for value in weights(tmp_path / "out").values())


@pytest.mark.slow
def test_a_full_disk_is_said(tuned, monkeypatch, tmp_path):
    from rung.training import trainer

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trainer.SFTTrainer, "_save_checkpoint", full)
    with pytest.raises(DiskFull, match=r"The disk of .* is full[\s\S]*the same command then goes on"):
        run(tuned[0], tmp_path / "out")


def test_wrong_questions(tuned, tmp_path):
    folder, _ = tuned
    for options, error, message in (
        ({"max_length": 4096}, ContextTooLong, r"holds 512 tokens[\s\S]*--max-length 512"),
        ({"format": "q2_k"}, UsageError, "reads q2_k and does not write it"),
        ({"format": "q4_k"}, UsageError, r"blocks of 256 do not divide rows of 128[\s\S]*--format q5_0"),
        ({"eval_split": 1.5}, UsageError, "is a share of the rows"),
        ({"eval_split": 0.001}, UsageError, "leaves nothing on one side"),
        ({"epochs": float("inf")}, UsageError, "--epochs is inf"),
        ({"learning_rate": float("nan")}, UsageError, "--learning-rate is nan"),
        ({"targets": "q_proj,v_prj"}, UsageError, r"--targets v_prj: base has no such matrix\. Did you mean v_proj"),
    ):
        with pytest.raises(error, match=message):
            run(folder, tmp_path / "-".join(options), Options(**{"format": "f32", "max_length": 64, **options}))
    with pytest.raises(UsageError, match="are the same folder"):
        run(folder, folder / "base", OPTIONS)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / STATE).write_text("[]")
    (tmp_path / "bad" / "loss.svg").touch()
    with pytest.raises(BadFile, match="is no state of rung tune"):
        run(folder, tmp_path / "bad")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UsageError, match="is not empty, and no run of rung tune"):
        run(folder, tmp_path / "full")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        run(folder, tmp_path / "file")


def test_checkpoints_that_were_being_written_are_removed(tmp_path):
    assert last_checkpoint(tmp_path) is None
    (tmp_path / "checkpoint-10").mkdir()
    assert last_checkpoint(tmp_path) is None
    assert not (tmp_path / "checkpoint-10").exists()


@pytest.mark.slow
def test_held_out_rows(tuned, tmp_path):
    folder, _ = tuned
    done = run(folder, tmp_path / "out", Options(**{**vars(OPTIONS), "eval_split": 0.25, "epochs": 1}))
    assert done.steps == 3
    assert len(done.held_out) == 3
    assert json.loads((tmp_path / "out" / STATE).read_text())["finished"]


def test_what_fits():
    """More memory is spent on speed first, then less on rows; the rows of a step stay."""
    from tests.planning.cards import gemma_2b

    card, device = gemma_2b(), catalog.device("v100")

    def planned(budget):
        found = fit(card, device, "nf4", rank=16, batch=8, accumulate=1, length=512, budget=int(budget * 2**30))
        assert found.batch * found.accumulate == 8
        assert found.use.most <= budget * 2**30
        return found.checkpointing, found.batch

    assert planned(100) == (False, 8)
    assert planned(20) == (True, 8)
    assert planned(12)[1] < 8
    with pytest.raises(DoesNotFit, match=r"needs .* on Tesla V100[\s\S]*--max-length 256"):
        planned(5)


def test_a_batch_that_two_does_not_divide_is_made_smaller_too():
    from tests.planning.cards import gemma_2b

    card, device = gemma_2b(), catalog.device("v100")

    def planned(batch, budget=2**40):
        return fit(card, device, "nf4", rank=16, batch=batch, accumulate=2, length=512, budget=budget)

    little = fit(card, device, "nf4", rank=16, batch=1, accumulate=1, length=512, budget=2**40).use.most
    for batch in (7, 9, 15):
        found = planned(batch, little)
        assert found.batch * found.accumulate == 2 * batch
        assert found.batch < batch


def test_a_gguf_base_is_refused_with_a_way(tmp_path):
    data = write(tmp_path / "d", question(1))
    with pytest.raises(UsageError, match=r"is a GGUF file[\s\S]*rung convert"):
        tune("demo", data, tmp_path / "out")
