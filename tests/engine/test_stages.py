"""A model in parts: the numbers and answers of one machine, whatever is under way, and errors that leave it whole."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from toy_backend import VOCABULARY, answer, finish, free_blocks, sequence, toy

from rung.core.errors import RungError, UsageError
from rung.engine.load import load
from rung.engine.open_model import open_any
from rung.engine.scheduling.pipeline import PipelineScheduler
from rung.engine.scheduling.stages import Split, load_stage, part_of
from rung.models.lookup import find_path
from rung.ops.sample.numpy_sample import RUNG
from rung.server.child.slots import Slots
from rung.server.protocol import ActOnSlot

GGUF = Path(__file__).parents[1] / "fixtures" / "gguf"
#: Models, and where their layers are cut. Gemma 3 has windows, whose blocks are given back.
MODELS = [("demo", (2, 4)), (str(GGUF / "gemma2-q8_0.gguf"), (1,)), (str(GGUF / "gemma3-f32.gguf"), (1,))]


def _options(name):
    return {"context": 128 if name == "demo" else 64, "parallel": 3, "threads": 1}


class Machines:
    """Stages, each with a thread that computes what comes in its order; ``broken`` fails the next batches."""

    def __init__(self, name, cuts):
        card = open_any(find_path(name))
        ends = [*cuts[1:], len(card.decoder.layers)]
        self.stages = [load_stage(card, *each, _options(name)) for each in zip(cuts, ends, strict=True)]
        self.threads = [ThreadPoolExecutor(1) for _ in self.stages]
        self.broken = 0

    def forward(self, batch, hidden):
        found = None
        for stage, thread in zip(self.stages, self.threads, strict=True):
            found = thread.submit(self._compute, stage, batch, hidden if found is None else found)
        return found.result

    def _compute(self, stage, batch, hidden):
        if self.broken:
            self.broken -= 1
            raise RungError("The machine is lost.")
        return stage.compute(batch, hidden if isinstance(hidden, bytes) else hidden.result())


def divided(name, cuts):
    machines = Machines(name, cuts)
    split = Split(cuts[0], machines.forward, len(cuts) + 1)
    return load(name, device="cpu", split=split, **_options(name)), machines


def _text(model, number):
    prompt = "a b c " * (1 + number % 3) + str(number % 4)
    return "".join(model.generate(prompt, raw=True, max_tokens=12, temperature=1.0, seed=number))


@pytest.mark.parametrize(("name", "cuts"), MODELS)
def test_parts_give_the_numbers_and_answers_of_one_machine(name, cuts):
    (model, machines), whole = divided(name, cuts), load(name, device="cpu", **_options(name))
    assert all(stage.same_bytes for stage in machines.stages) or not whole.backend.same_bytes
    ids = [1 + k % 40 for k in range(40)]
    if not whole.backend.same_bytes:  # floats as they are stored, which sum rows in another order than one
        for ours, theirs in zip(model.logits(ids), whole.logits(ids), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
        return
    for ours, theirs in zip(model.logits(ids), whole.logits(ids), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda k: _text(model, k), range(12))) == [_text(whole, k) for k in range(12)]


def test_a_machine_that_is_lost_ends_the_step_and_what_comes_after_is_right():
    model, machines = divided("demo", (3,))
    whole = _text(model, 1)
    generation = iter(model.generate("a b c 1", raw=True, max_tokens=40, temperature=1.0, seed=1))
    next(generation)
    machines.broken = 2
    with pytest.raises(RungError, match="lost"):
        list(generation)
    machines.broken = 0
    assert _text(model, 1) == whole


def test_slots_of_a_divided_model_are_erased_and_neither_saved_nor_restored(tmp_path):
    """A file of the first machine would have the keys and values of its own layers, and answers would go on wrong."""
    (model, _), whole = divided("demo", (3,)), load("demo", device="cpu", **_options("demo"))
    folder = tmp_path / "slots"
    first, ours = Slots(whole, str(folder)), Slots(model, str(folder))
    said = [_kept(slots, each) for slots, each in ((first, whole), (ours, model))]
    assert said[0] == said[1]
    first.act(ActOnSlot(action="save", slot=0, name="plan", owner="one"))
    before = sorted(folder.iterdir())
    for action in ("save", "restore"):
        with pytest.raises(RungError, match="several machines") as refused:
            ours.act(ActOnSlot(action=action, slot=0, name="plan", owner="one"))
        assert refused.value.code == "model-divided"
        assert refused.value.facts
        assert refused.value.ways_out
    assert sorted(folder.iterdir()) == before
    assert ours.act(ActOnSlot(action="erase", slot=0, owner="one"))["tokens"] > 0
    assert _kept(ours, model) == said[0]


def _kept(slots, model):
    """The tokens of an answer that the first slot has afterwards; none of its prompt was computed before."""
    answer = model.start(
        model.prompt_ids("the plan has a place for each layer"), goes_on=True, max_tokens=6, owner="one"
    )
    list(answer)
    assert answer.result["cached_tokens"] == 0
    slots.keep(0, answer.sequence)
    return answer.tokens


def test_parts_have_their_tensors_alone_and_all_of_them_together():
    card = open_any(find_path("demo"))
    first, last = part_of(card, 0, 2), part_of(card, 2, 6)
    assert {tensor.name for tensor in (*first.tensors, *last.tensors)} == {tensor.name for tensor in card.tensors}
    assert first.weight_bytes + last.weight_bytes == card.weight_bytes
    assert all(tensor.role.startswith("layers.") for tensor in last.tensors)
    with pytest.raises(UsageError, match="layers"):
        part_of(card, 4, 7)


@pytest.mark.parametrize(
    "option", [{"adapters": ["x"]}, {"draft": "demo"}, {"device": "cuda:0"}, {"prefix_cache": "x"}]
)
def test_what_cannot_be_divided_is_refused(option):
    with pytest.raises(UsageError, match="several machines"):
        load("demo", split=Split(2, lambda batch, hidden: lambda: hidden), **option)


class _Apart:
    """A toy backend whose steps are under way: they are computed when they are waited for, in any company."""

    def __init__(self, decoder, depth):
        self.decoder, self.depth = decoder, depth

    def __getattr__(self, name):
        return getattr(self.decoder, name)

    def submit(self, batch):
        logits = np.array(self.decoder.compute(batch))
        return lambda: logits


@pytest.mark.parametrize("seed", range(8))
def test_any_order_gives_the_tokens_of_a_sequence_alone(seed):
    """Small pools, so that sequences lose their caches; prompts that begin alike; answers that are dropped under
    way."""
    chance = random.Random(seed)
    decoder = toy(context=32, blocks=chance.choice([8, 11, 24]), parallel=chance.choice([2, 5]))
    scheduler = PipelineScheduler(
        _Apart(decoder, chance.choice([2, 3])), lambda logits, rows: RUNG.apply(None, logits, rows)
    )
    starts = [[chance.randrange(1, VOCABULARY) for _ in range(chance.randrange(1, 20))] for _ in range(4)]
    live, done = [], 0
    while done < 40:
        if len(live) < 6 and chance.random() < 0.5:
            prompt = chance.choice(starts) + [chance.randrange(1, 5) for _ in range(3)]
            live.append((sequence(prompt, chance.randrange(1, 12), chance.choice("ab")), []))
            scheduler.add(live[-1][0])
        if not live:
            continue
        scheduler.advance(*(each for each, _ in live))
        for each, said in list(live):
            while (token := each.take()) is not None:
                said.append(token)
            dropped = chance.random() < 0.05
            if dropped or (each.ended and not each.ahead):
                assert said == answer(each.ids[: each.prompt], len(said))
                scheduler.cancel(each)
                live.remove((each, said))
                done += 1
    for each, _ in live:
        scheduler.cancel(each)
    last = sequence([1, 2], 3)
    scheduler.add(last)
    assert finish(scheduler, last) == [answer([1, 2], 3)]
    decoder.prefixes.clear()
    assert free_blocks(decoder) == [len(member.uses) for member in decoder.pool.members]
