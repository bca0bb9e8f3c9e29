"""Language models through WebGPU on a software adapter: logits against those of transformers, answers, counts."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from tests.fixtures import references
from tests.support.devices import software_adapter

import rung
from rung.core.types import Case
from rung.core.value import FrozenDict
from rung.engine.scheduling import scheduler
from rung.engine.scheduling.sequence_reader import SequenceReader
from rung.ops import LADDERS, decode_step
from rung.ops.decode_step import self_check

adapter = software_adapter()
#: One of each kind: biases, norms of q and k, one weight for gate and up, windows and soft caps, mixed formats.
FEW = ("qwen2-f32", "qwen3-f32", "phi3-f32", "gemma2-q8_0", "gemma3-f32", "llama-q4_k_m", "llama-iq2_s")
#: With activations as bytes: six bits and four with scales of six, norms behind products.
BYTEWISE = ("llama-q4_k_m", "gemma2-q8_0")
#: The divergence of a quantized fixture is that of its recorded logits, which are float16.
BAR, RECORDED = 1e-11, 1e-6
PROMPT = "The model runs on a device with"


def load(name, adapter, **options):
    fixture = references.fixture(name)
    return rung.load(str(fixture.path), device=adapter.id, context=fixture.context, **options)


WITHOUT_TORCH = """
import sys
import rung
model = rung.load("demo", device=sys.argv[1])
text = "".join(model.generate("the model runs on a device " * 8, raw=True, max_tokens=4))
assert text and "torch" not in sys.modules
"""


def test_torch_is_not_imported(adapter):
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, adapter.id], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def slow_but(few):
    names = [fixture.name for fixture in references.fixtures()]
    return [pytest.param(name, marks=() if name in few else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", slow_but(FEW))
def test_logits_are_those_of_transformers(adapter, name):
    model, recorded = load(name, adapter, cache_type="f32"), np.load(references.FOLDER / f"{name}.npz")
    assert model.report.rungs["decode_step f32"] == "webgpu.f32"
    bar, right = BAR if recorded["logits"].dtype == np.float32 else RECORDED, recorded["logits"].astype(np.float32)
    at_once = np.asarray(model.logits(recorded["ids"].tolist()))
    for found in (at_once, references.token_by_token(model, recorded["ids"])):
        agreement = references.agreement(right, found)
        assert agreement.divergence < bar
        assert agreement.same_choice == 1


@pytest.fixture
def bytewise(monkeypatch):
    """Let the software adapter take ``webgpu.int8``, which nobody is given for whom it is slower."""
    monkeypatch.setattr(decode_step, "check_webgpu_int8", decode_step.check_webgpu)


@pytest.mark.usefixtures("bytewise")
@pytest.mark.parametrize("name", slow_but(BYTEWISE))
def test_activations_of_one_byte_move_logits_by_no_more_than_on_the_processor(adapter, name):
    """A row alone, and 16 that share the weights; the bar is the processor's divergence where that is more."""
    model, recorded = load(name, adapter, cache_type="f32"), np.load(references.FOLDER / f"{name}.npz")
    assert model.report.rungs["decode_step f32"] == "webgpu.int8"
    right, ids = recorded["logits"].astype(np.float32), recorded["ids"].tolist()
    fixture = references.fixture(name)
    processor = rung.load(str(fixture.path), device="cpu", context=fixture.context)
    bar = max(1e-3, references.agreement(right, np.asarray(processor.logits(ids))).divergence)
    for found in (np.asarray(model.logits(ids)), references.token_by_token(model, recorded["ids"])):
        agreement = references.agreement(right, found)
        assert agreement.divergence < bar
        assert agreement.same_choice > 0.95


def test_answers_are_those_of_the_processor_and_of_company(adapter):
    here, there = rung.load("demo", device="cpu"), rung.load("demo", device=adapter.id)
    prompts = [PROMPT, "Memory is", "A plan", "Precision of"]
    options = {"max_tokens": 12, "temperature": 0, "raw": True}
    right = ["".join(here.generate(prompt, **options)) for prompt in prompts]
    assert ["".join(there.generate(prompt, **options)) for prompt in prompts] == right
    assert [answer.text for answer in there.generate_many(prompts, [options] * len(prompts), progress=False)] == right


@pytest.mark.slow
@pytest.mark.parametrize("rung_", ["webgpu.f32", pytest.param("webgpu.int8", marks=pytest.mark.slow)])
def test_a_cache_in_q8_0_costs_no_more_than_on_the_processor(adapter, monkeypatch, rung_):
    """Beside a cache in f32; as a prompt, token by token, and of several answers at once. On the processor queries are
    rounded, too."""
    if rung_ == "webgpu.int8":
        monkeypatch.setattr(decode_step, "check_webgpu_int8", decode_step.check_webgpu)
    exact, half, found = (
        rung.load("demo", device=adapter.id, context=256, cache_type=each) for each in ("f32", "f16", "q8_0")
    )
    assert found.report.rungs["decode_step q8_0"] == rung_
    here, there = (rung.load("demo", device="cpu", context=256, cache_type=each) for each in ("f32", "q8_0"))
    assert found.plan.placements[0].memory.kv_cache == half.plan.placements[0].memory.kv_cache * 17 // 32
    ids = np.random.default_rng(3).integers(3, 300, 96).tolist()
    bar = max(1e-3, references.agreement(np.asarray(here.logits(ids)), np.asarray(there.logits(ids))).divergence)
    right = np.asarray(exact.logits(ids))
    for logits in (np.asarray(found.logits(ids)), references.token_by_token(found, np.asarray(ids))):
        assert 0 < references.agreement(right, logits).divergence < bar
    prompts, options = [PROMPT, "Memory is", "A plan"], {"max_tokens": 12, "temperature": 0, "raw": True}
    answers = ["".join(found.generate(prompt, **options)) for prompt in prompts]
    assert [each.text for each in found.generate_many(prompts, [options] * 3, progress=False)] == answers
    assert answers == ["".join(exact.generate(prompt, **options)) for prompt in prompts]


@pytest.mark.parametrize("rung_", ["webgpu.f32", pytest.param("webgpu.int8", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["demo", "gemma2-q8_0"])
def test_a_prompt_64_rows_at_a_time_has_the_bits_of_16_at_a_time(adapter, monkeypatch, name, rung_):
    """As hidden states and as tokens; in five kernels for the first 64, not for each 16."""
    from rung.kernels.webgpu.gpu import gpu
    from rung.ops.decode_step.webgpu import step

    if rung_ == "webgpu.int8":
        monkeypatch.setattr(decode_step, "check_webgpu_int8", decode_step.check_webgpu)
    device, counts, found = gpu(adapter.id), [], []
    run = device.run
    monkeypatch.setattr(device, "run", lambda work, rows=1: (counts.append(rows), run(work, rows)))
    for few in (step._FEW, 64):
        monkeypatch.setattr(step, "_FEW", few)
        model = rung.load("demo", device=adapter.id, context=256) if name == "demo" else load(name, adapter)
        ids = np.random.default_rng(1).integers(3, 250, 100).tolist()
        counts.clear()
        with SequenceReader(model.backend) as reader:
            found.append(reader.prefill(ids).copy())
        assert counts[:2] == ([64, 16] if few < 64 else [16, 16])
    assert (found[0] == found[1]).all()


def test_a_prefix_is_shared_inside_a_block(adapter):
    """A copied part of a block goes through the processor's memory and back."""
    model = rung.load("demo", device=adapter.id)
    text = "the model runs on a device " * 20
    first = "".join(model.generate(text + "and", max_tokens=8, temperature=0, raw=True))
    again = model.generate(text + "and", max_tokens=8, temperature=0, raw=True)
    assert "".join(again) == first
    assert again.result["cached_tokens"] > 64


def case(format, head_dim):
    options = {"head_dim": head_dim, "linears": ("webgpu.rows",), "devices": 1}
    return Case("decode_step", format, "f32", (2, 64, 96, 83), FrozenDict(options))


@pytest.mark.slow
def test_a_wrong_shader_is_found_by_the_self_check(adapter, monkeypatch):
    """Windows, soft caps, LoRA, DoRA and rows of three sequences are part of it."""
    from rung.kernels.webgpu.choose import feed_back
    from rung.ops.decode_step.webgpu import program

    rung_ = LADDERS["decode_step"].rung("webgpu.f32")
    assert self_check.check(rung_, case("f16", 64), adapter.id) == ""
    plain = program.attend
    faults = {
        "window": lambda sight: replace(sight, window=sight.window and sight.window + 1),
        "soft cap": lambda sight: replace(sight, softcap=None),
        "scale": lambda sight: replace(sight, scale=sight.scale * 1.02),
    }
    for name, fault in faults.items():
        monkeypatch.setattr(program, "attend", lambda heads, sight, *others, f=fault: plain(heads, f(sight), *others))
        assert self_check.check(rung_, case("f16", 64), adapter.id), name
    monkeypatch.setattr(program, "attend", plain)
    fed = feed_back()
    faulty = fed._replace(code=fed.code.replace("info[256u] += 1u", ""))
    assert faulty != fed
    monkeypatch.setattr(program, "feed_back", lambda: faulty)
    assert "chosen" in self_check.check(rung_, case("f16", 64), adapter.id)
    monkeypatch.setattr(program, "feed_back", feed_back)
    drawn = program.draw.draw
    monkeypatch.setattr(
        program.draw,
        "draw",
        lambda *arguments: drawn(*arguments)._replace(
            code=drawn(*arguments).code.replace("let random = setting(4u + ", "let random = 0.5 * setting(4u + ")
        ),
    )
    assert "drawn" in self_check.check(rung_, case("f16", 64), adapter.id)


@pytest.mark.parametrize("rung_", ["webgpu.f32", pytest.param("webgpu.int8", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["llama-q4_k_m", "gemma2-q8_0", "gemma3-f32", "llama-bf16"])
def test_a_token_is_one_command_buffer_of_five_kernels_a_layer(adapter, monkeypatch, name, rung_):
    from rung.kernels.webgpu.gpu import gpu

    if rung_ == "webgpu.int8":
        monkeypatch.setattr(decode_step, "check_webgpu_int8", decode_step.check_webgpu)
    model, device, counts = load(name, adapter), gpu(adapter.id), []
    "".join(model.generate(PROMPT, max_tokens=2, temperature=0, raw=True))
    run = device.run
    monkeypatch.setattr(device, "run", lambda work, rows=1: (counts.append(len(work)), run(work, rows)))
    monkeypatch.setattr(scheduler, "LOOK_AHEAD", 0)
    tokens = list(model.generate(PROMPT + " 16", max_tokens=4, temperature=0, raw=True))
    layers = len(model.card.decoder.layers)
    assert tokens
    assert counts[-3:] == [5 * layers + 4] * 3
    assert rung_ in model.report.rungs.values()


@pytest.mark.parametrize("name", ["demo", "gemma3-f32", "llama-q4_1"])  # the head of the last is not tied
def test_tokens_chosen_on_the_device_are_those_of_its_logits(adapter, monkeypatch, name):
    """Over the end of a block of the cache, where each kind of layer has its own rotation and window."""
    model = rung.load("demo", device=adapter.id) if name == "demo" else load(name, adapter)
    text = "the model runs on a device " * 12
    ids = model.tokenizer.encode(text)[:56]
    text = model.tokenizer.decode(ids)
    crossed = []
    run = model.backend.choose
    monkeypatch.setattr(
        model.backend, "choose", lambda *arguments: (crossed.append(len(arguments[-1])), run(*arguments))[1]
    )
    monkeypatch.setattr(scheduler, "LOOK_AHEAD", 1e9)
    for settings in ({}, {"seed": 2, "temperature": 1.0}, {"seed": 7, "temperature": 0.8, "top_k": 40, "top_p": 0.9}):
        options = {"max_tokens": 24, "temperature": 0, "raw": True, **settings}
        right = model.generate(text, logprobs=True, **options)
        "".join(right)
        assert not crossed
        found = model.generate(text, **options)
        "".join(found)
        assert found.tokens == right.tokens
        assert max(crossed, default=0) == (16 if len(right.tokens) > 2 else 1)
        crossed.clear()


@pytest.mark.slow
@pytest.mark.parametrize("rung_", ["webgpu.f32", pytest.param("webgpu.int8", marks=pytest.mark.slow)])
def test_a_long_context_takes_a_kernel_more_a_layer_and_gives_the_same_logits(adapter, monkeypatch, rung_):
    """Where attention is in parts: from position 64 on here, in parts of 64."""
    from rung.kernels.webgpu import attention
    from rung.kernels.webgpu.gpu import gpu
    from rung.ops.decode_step.webgpu import program

    if rung_ == "webgpu.int8":
        monkeypatch.setattr(decode_step, "check_webgpu_int8", decode_step.check_webgpu)
    counts, device = [], gpu(adapter.id)
    run = device.run
    whole, parted = rung.load("demo", device=adapter.id, context=256), rung.load("demo", device=adapter.id, context=256)
    ids = np.random.default_rng(1).integers(3, 300, 200).tolist()
    right = whole.logits(ids)
    for module in (attention, program):
        monkeypatch.setattr(module, "ONE_PART", 64)
    monkeypatch.setattr(attention, "PART", 64)
    monkeypatch.setattr(device, "run", lambda work, rows=1: (counts.append(len(work)), run(work, rows)))
    found = parted.logits(ids)
    assert rung_ in parted.report.rungs.values()
    layers = len(parted.card.decoder.layers)
    assert max(counts) - counts[0] == layers
    assert (found[:48] == right[:48]).all()
    assert 0 < np.abs(found - right).max() < (1e-3 if rung_ == "webgpu.f32" else 0.2) * right.std()
