"""A GPU that is lost, full or wrong in the midst of an answer: it goes on on the processor, and the report says so."""

import numpy as np
import pytest
from tests.support.devices import software_adapter
from tests.support.lora import write_lora
from toy_backend import answer, finish, scheduling, sequence, toy

import rung
from rung.core.errors import DeviceError, DeviceLost, DoesNotFit, OutOfMemory
from rung.core.types import StepClass
from rung.engine.load import load
from rung.engine.scheduling.scheduler import Scheduler
from rung.ops.sample.numpy_sample import RUNG

adapter = software_adapter()
PROMPT = "A plan"
SETTINGS = {0: {"temperature": 0}, 1: {"temperature": 1, "seed": 3}}
GREEDY, DRAWN = ({"max_tokens": 24, "raw": True, **SETTINGS[temperature]} for temperature in (0, 1))


def lose(model, device, monkeypatch):
    device.device.destroy()


def plant_nan(model, device, monkeypatch):
    """As a driver would that computes wrong keys."""
    keys = model.backend.pool.buffer(0)
    device.write(keys, 0, np.full(keys.size // 2, np.nan, np.float16))


def fill(model, device, monkeypatch):
    """Let the device fail as a driver does that gives memory only when it is used."""
    import wgpu

    def full(*arguments):
        raise wgpu.GPUOutOfMemoryError("Not enough memory left.")

    monkeypatch.setattr(device, "record", full)


FAULTS = [
    (lose, StepClass.DEVICE_LOST, "is lost"),
    (fill, StepClass.OUT_OF_MEMORY, "memory left"),
    (plant_nan, StepClass.BROKEN, "no numbers"),
]


@pytest.fixture(scope="module")
def here():
    return rung.load("demo", device="cpu")


def go_on(model, tokens, **options):
    """The tokens of an answer whose first ones are known."""
    answer = model.start(model.prompt_ids(PROMPT), goes_on=True, answered=tokens, **options)
    "".join(answer)
    return answer.tokens


@pytest.mark.parametrize(("fault", "kind", "words"), FAULTS, ids=lambda each: getattr(each, "__name__", ""))
def test_an_answer_goes_on_on_the_processor(adapter, monkeypatch, here, fault, kind, words):
    from rung.kernels.webgpu.gpu import gpu

    said = []
    model = load("demo", device=adapter.id, on_step=said.append, on_note=said.append)
    answers = [model.generate(PROMPT, **options) for options in (GREEDY, DRAWN)]
    for each in answers:
        [next(iter(each)) for _ in range(3)]
    known = [list(each.tokens) for each in answers]
    fault(model, gpu(adapter.id), monkeypatch)
    for each, tokens, options in zip(answers, known, (GREEDY, DRAWN), strict=True):
        list(each)
        assert each.tokens == go_on(here, tokens, max_tokens=24, **SETTINGS[options["temperature"]])
        assert len(each.tokens) > len(tokens)
    (step,) = [step for step in model.report.steps if step.op == "model"]
    assert (step.device, step.step, step.to) == (adapter.id, kind, "cpu")
    assert words in step.reason
    assert step in said
    assert any("rung devices --probe" in note for note in model.report.notes)
    assert answers[0].result["plan"]["placements"][0]["device"] == "cpu"
    "".join(again := model.generate(PROMPT, **GREEDY))
    assert again.tokens == go_on(here, [], max_tokens=24, **SETTINGS[0])
    assert model.report.steps == (step,)


def test_a_lost_device_is_opened_anew_by_the_next_model(adapter, here):
    from rung.kernels.webgpu.gpu import gpu

    first = gpu(adapter.id)
    model = rung.load("demo", device=adapter.id)
    first.device.destroy()
    assert "".join(model.generate(PROMPT, **GREEDY)) == "".join(here.generate(PROMPT, **GREEDY))
    assert first.lost  # before an answer began
    assert gpu(adapter.id) is not first
    again = rung.load("demo", device=adapter.id)
    assert list(again.generate(PROMPT, max_tokens=1, raw=True))
    assert not again.report.steps


def test_an_adapter_goes_with_its_answer(adapter, tmp_path, monkeypatch):
    from rung.kernels.webgpu.gpu import gpu

    folder, texts = write_lora(tmp_path), []
    for device in ("cpu", adapter.id):
        model = rung.load("demo", device=device)
        model.load_adapter(folder, "one")
        found = model.generate(PROMPT, **GREEDY, adapter="one")
        begun = [next(iter(found))]
        if device != "cpu":
            lose(model, gpu(device), monkeypatch)
        texts.append("".join([*begun, *found]))
    assert texts[0] == texts[1] != "".join(model.generate(PROMPT, **GREEDY))


def test_where_the_processor_has_no_room_the_error_says_so(adapter, monkeypatch):
    from rung.kernels.webgpu.gpu import gpu

    model = rung.load("demo", device=adapter.id)
    answer = model.generate(PROMPT, **GREEDY)
    next(iter(answer))

    def refuse():
        raise DoesNotFit("The model does not fit.")

    monkeypatch.setattr(model, "processor", refuse)
    lose(model, gpu(adapter.id), monkeypatch)
    with pytest.raises(DeviceLost) as caught:
        list(answer)
    assert "The model does not fit." in caught.value.facts[-1]


class Failing:
    """A toy whose device fails in its n-th step."""

    def __init__(self, decoder, at, error):
        self.left, self.error = at, error
        decoder.step.before = self.count

    def count(self, batch):
        self.left -= 1
        if not self.left:
            raise self.error


@pytest.mark.parametrize("at", range(1, 9))
def test_every_sequence_goes_on_with_the_tokens_it_has(at):
    """Wherever the device fails: in prompts, in company, with sequences that still wait for room."""
    first, second = toy(blocks=24, parallel=2), toy(parallel=2)
    Failing(first, at, DeviceLost("gone"))
    replaced = []

    def replace(error):
        replaced.append(error)
        return second

    scheduler = Scheduler(first, lambda logits, rows: RUNG.apply(None, logits, rows), 4, replace=replace)
    prompts = [[1, 2, 3, 4, 5, 6], [7, 8], [9]]
    sequences = [sequence(prompt) for prompt in prompts]
    for each in sequences:
        scheduler.add(each)
    assert finish(scheduler, *sequences) == [answer(prompt, 8) for prompt in prompts]
    assert len(replaced) == 1
    second.prefixes.clear()
    assert [member.free for member in second.pool.members] == [len(member.uses) for member in second.pool.members]


def test_without_another_backend_the_error_is_raised_and_a_full_pool_is_no_device():
    decoder = toy()
    Failing(decoder, 2, DeviceError("gone"))
    scheduler = scheduling(decoder)
    scheduler.add(each := sequence([1, 2]))
    with pytest.raises(DeviceError):
        finish(scheduler, each)
    small = toy(context=32, blocks=1)
    scheduler = Scheduler(small, lambda logits, rows: RUNG.apply(None, logits, rows), replace=lambda error: 1 / 0)
    scheduler.add(each := sequence(list(range(1, 20))))
    with pytest.raises(OutOfMemory, match="no room"):
        scheduler.advance(each)


def test_logits_that_are_no_numbers_end_one_sequence_where_nothing_replaces_the_device():
    first, second = toy(), toy()
    first.step.apply = lambda state, batch: np.full((len(batch), 97), np.nan, np.float32)
    scheduler = Scheduler(first, lambda logits, rows: RUNG.apply(None, logits, rows), replace=lambda error: second)
    scheduler.add(each := sequence([1, 2]))
    assert finish(scheduler, each) == [answer([1, 2], 8)]
    scheduler = scheduling(first)
    scheduler.add(each := sequence([1, 2]))
    while not each.ended:
        scheduler.advance(each)
    assert isinstance(each.error, DeviceError)
