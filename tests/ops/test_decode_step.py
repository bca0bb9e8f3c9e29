"""A whole token as one program against the decoder of smaller ops, for each architecture."""

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
from tiny_decoders import KINDS, PlainParts, checkpoint, roles, shape

from rung import formats
from rung.core.types import Capability, Case, Device, Level, Proof
from rung.core.value import FrozenDict
from rung.engine.kv_cache import Cache
from rung.formats.families import grouped
from rung.kernels.cpu import nodes
from rung.kernels.cpu.decode.step_program import share
from rung.models.adapters.adapter import LowRank
from rung.ops import proof
from rung.ops.attention.numpy_sdpa import RUNG as ARRAY_ATTENTION
from rung.ops.attention.ref import RUNG as REF_ATTENTION
from rung.ops.decode_step import LADDER
from rung.ops.decode_step.low_rank import Adapted
from rung.ops.decode_step.numba_step import RUNG as STEP
from rung.ops.decode_step.numba_step import State
from rung.ops.decode_step.numpy_step import RUNG as ARRAY_STEP
from rung.ops.decode_step.ref import RUNG as REF
from rung.ops.decode_step.weights import Weights
from rung.ops.linear import READ_AS_STORED
from rung.ops.linear.numba_r16 import MAPPED, ROW
from rung.ops.linear.numba_stored import RUNG as STORED


def encoded(weight, format):
    if format != "e4m3":
        return formats.encode(weight.numpy(), formats.get(format))
    codes = weight.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    scale = np.ones((len(codes), codes.shape[1] // 16), np.float32)
    return grouped.build(formats.get("e4m3:16"), codes, scale, None)


class RowLinear:
    """A weight on the rung of linear for single rows in its format."""

    def __init__(self, weight, format):
        self.rung = STORED if format in READ_AS_STORED else ROW
        self.state = self.rung.prepare(encoded(weight, format), dtype="f32", threads=1)
        self.without_torch = format not in READ_AS_STORED

    def __call__(self, x):
        return self.rung.apply(self.state, x)

    def multiply(self, x):
        return self.rung.multiply(self.state, x)


class PackedParts(PlainParts):
    def __init__(self, weights, format):
        super().__init__(weights, REF_ATTENTION.apply)
        self.format = format

    def linear(self, role):
        weight = self.weights.get(role, self.weights["embed"]) if role == "head" else self.weights[role]
        return RowLinear(weight, self.format)


IDS = torch.randint(0, 128, (18,), generator=torch.Generator().manual_seed(1)).tolist()


def prepared(kind, format, cache_dtype, threads):
    """A reader of prompts and a cache on each of two rungs: ref and numba.step."""
    model = checkpoint(kind)
    described = shape(model)
    for rung in (REF, STEP):
        cache = Cache(described, 32, cache_dtype, ["cpu"] * len(described.layers))
        weights = Weights.bind(described, PackedParts(roles(model), format), 32)
        state = rung.prepare(weights, cache, threads=threads)
        yield rung, rung.reader(state), cache, state


def tokens(rung, state):
    """Logits of one token after the other."""
    return torch.stack([torch.from_numpy(rung.apply(state, token, place)) for place, token in enumerate(IDS)])


def assert_close(found, wanted):
    """Both multiply the same int8 activations; where one rounds to the next integer, a little differs."""
    assert (found - wanted).abs().max() < 0.1 * wanted.std()
    assert (found - wanted).square().mean().sqrt() < 0.02 * wanted.std()


class Arrays:
    """A linear and an attention that know arrays only."""

    without_torch = True

    def __init__(self, weight=None):
        self.weight = weight

    def multiply(self, x):
        return x @ self.weight.T

    def attend(self, *given, **options):
        return ARRAY_ATTENTION.attend(*given, **options)


class ArrayParts(PlainParts):
    def linear(self, role):
        weight = self.weights.get(role, self.weights["embed"]) if role == "head" else self.weights[role]
        return Arrays(weight.numpy())

    def attention(self, layer):
        return Arrays()


@pytest.mark.parametrize("kind", KINDS)
def test_without_torch_the_logits_of_every_architecture_are_the_same(kind):
    model = checkpoint(kind)
    described, found = shape(model), []
    for rung, parts in ((REF, PlainParts(roles(model))), (ARRAY_STEP, ArrayParts(roles(model)))):
        cache = Cache(described, 32, "f32", ["cpu"] * len(described.layers))
        state = rung.prepare(Weights.bind(described, parts, 32), cache, threads=1)
        reader = rung.reader(state)
        prompt = [reader.logits(reader.read(ids, cache, start)) for ids, start in ((IDS[:7], 0), (IDS[7:16], 7))]
        found.append(np.concatenate([*prompt, *(rung.apply(state, IDS[at], at)[None] for at in (16, 17))]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-4 * np.abs(found[0]).max())


def test_columns_in_an_order_of_their_own_are_refused():
    options = FrozenDict({"head_dim": 64, "linears": ("numba.row",), "ordered": True})
    verdict = LADDER.rung("numba.step").verdict(Case("decode_step", "f32", "f32", (2, 64, 96, 83), options), CPU)
    assert "order of their own" in verdict.reason


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_equal_those_of_the_smaller_ops(kind):
    turn = list(KINDS).index(kind) % 2
    threads, cache_dtype = ((1, "f32"), (2, "f16"))[turn]
    (_, _, wanted_cache, wanted_state), (_, _, cache, state) = prepared(kind, "q8_0", cache_dtype, threads)
    assert_close(tokens(STEP, state), tokens(REF, wanted_state))
    for mine, theirs in zip(cache.keys + cache.values, wanted_cache.keys + wanted_cache.values, strict=True):
        torch.testing.assert_close(mine[:, : len(IDS)], theirs[:, : len(IDS)], rtol=0.05, atol=0.1)
        assert not mine[:, len(IDS) :].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", ["q8_0", "f16"])
def test_prompts_of_every_rung_equal_those_through_torch(kind, format):
    """Packed weights are read without torch, floats as they are stored with it, and so is what the glue alone reads."""
    dtype, threads = ((("f16", 1), ("f32", 2)))[list(KINDS).index(kind) % 2]
    (_, plain, wanted_cache, _), (_, reader, cache, state) = prepared(kind, format, dtype, threads)
    assert STEP.reads_without_torch(state) == (format == "q8_0")
    parts = ((IDS[:7], 0), (IDS[7:8], 7), (IDS[8:16], 8), (IDS[16:], 16))
    wanted = [torch.from_numpy(plain.logits(plain.read(ids, wanted_cache, start))) for ids, start in parts]
    found = [torch.from_numpy(reader.logits(reader.read(ids, cache, start))) for ids, start in parts]
    assert_close(torch.cat(found), torch.cat(wanted))
    for mine, theirs in zip(cache.keys + cache.values, wanted_cache.keys + wanted_cache.values, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.05, atol=0.1)
        assert not mine[:, len(IDS) :].any()


def test_mixed_formats_share_their_activations():
    """q4_k and q6_k want different sums of the same activations, as a Q4_K_M file mixes them."""

    class Mixed(PackedParts):
        def linear(self, role):
            self.format = "q6_k" if role.endswith((".v", ".up", "down", "head")) else "q4_k"
            return super().linear(role)

    model = checkpoint("llama", hidden_size=256, intermediate_size=512, num_hidden_layers=2)
    found = []
    for rung in (REF, STEP):
        cache = Cache(shape(model), 32, "f32", ["cpu"] * 2)
        state = rung.prepare(Weights.bind(shape(model), Mixed(roles(model), "q4_k"), 32), cache, threads=2)
        found.append(tokens(rung, state))
    assert_close(found[1], found[0])


@pytest.mark.parametrize("format", READ_AS_STORED)
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_weights_stored_as_floats_give_the_same_sums(kind, format):
    """Nothing is rounded to int8 here: only the order of sums differs. The vocabulary is no multiple of 16."""
    (_, _, wanted_cache, wanted_state), (_, _, cache, state) = prepared(kind, format, "f32", 2)
    wanted = tokens(REF, wanted_state)
    torch.testing.assert_close(tokens(STEP, state), wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))
    for mine, theirs in zip(cache.keys + cache.values, wanted_cache.keys + wanted_cache.values, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_floats_and_packed_weights_stand_side_by_side():
    class Mixed(PackedParts):
        def linear(self, role):
            self.format = "bf16" if role.endswith((".k", ".up", "head")) else "q8_0"
            return super().linear(role)

    model = checkpoint("llama", vocab_size=131)
    found = []
    for rung in (REF, STEP):
        cache = Cache(shape(model), 32, "f32", ["cpu"] * len(shape(model).layers))
        state = rung.prepare(Weights.bind(shape(model), Mixed(roles(model), "q8_0"), 32), cache, threads=2)
        found.append(tokens(rung, state))
    assert_close(found[1], found[0])


class AdaptedParts(PackedParts):
    """A LoRA of rank 5 beside every linear, a DoRA beside some; ``torch`` has torch add them."""

    def __init__(self, weights, format, torch):
        super().__init__(weights, format)
        self.torch = torch

    def linear(self, role):
        linear = super().linear(role)
        weight = self.weights.get(role, self.weights["embed"]) if role == "head" else self.weights[role]
        linear.encoded = lambda: encoded(weight, self.format)
        rows, columns = weight.shape
        random = np.random.default_rng([ord(letter) for letter in role])
        down, up = random.standard_normal((5, columns)), random.standard_normal((rows, 5)) / 8
        magnitude = 1 + random.random(rows) if role.endswith((".o", ".up", ".gate_up", ".v")) else None
        change = LowRank(*(part.astype(np.float32) for part in (down, up)), 0.5, magnitude)
        made = Adapted(linear, [change], "cpu", 2)
        if not self.torch:
            return made
        wide = torch.from_numpy((change.scale * change.up @ change.down).astype(np.float32))
        factor = 1.0 if magnitude is None else torch.from_numpy(made.beside.rows.factor[:rows].copy())
        return lambda x: (linear(x) + x @ wide.T) * factor


@pytest.mark.parametrize("format", ["q8_0", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_stand_beside_weights_of_every_architecture(kind, format):
    """Tokens and prompts of the compiled rung, against torch beside the same weights."""
    model, found = checkpoint(kind, vocab_size=131), []
    for rung in (REF, STEP):
        cache = Cache(shape(model), 40, "f32", ["cpu"] * len(shape(model).layers))
        parts = AdaptedParts(roles(model), format, torch=rung is REF)
        state = rung.prepare(Weights.bind(shape(model), parts, 40), cache, threads=2)
        reader = rung.reader(state)
        prompt = torch.from_numpy(reader.logits(reader.read(IDS[:7], cache, 0)))
        step = [torch.from_numpy(rung.apply(state, token, 7 + place)) for place, token in enumerate(IDS)]
        found.append(torch.cat([prompt, torch.stack(step)]))
    plain = list(prepared(kind, format, "f32", 2))
    assert STEP.reads_without_torch(plain[1][3]) == (format == "q8_0")
    assert_close(found[1], found[0])


def test_a_call_can_be_repeated_and_the_logits_are_the_callers():
    _, (_, _, _, state) = prepared("qwen3", "q8_0", "f16", 2)
    first = STEP.apply(state, 5, 0)
    kept = first.copy()
    STEP.apply(state, 9, 1)
    assert np.array_equal(first, kept)
    assert np.array_equal(STEP.apply(state, 5, 0), kept)


def test_memory_of_logits_is_taken_again_when_nobody_looks_into_it():
    logits, given = np.arange(5, dtype=np.float32), np.empty(5, np.float32)
    state = State(None, None, None, 1, None, (), None, logits, given)
    del given
    first = state.answer()
    logits[:] = 7
    second = state.answer()
    assert (first.tolist(), second.tolist()) == ([0, 1, 2, 3, 4], [7] * 5)
    look = second[1:3]
    del first, second
    logits[:] = 9
    third = state.answer()
    assert look.tolist() == [7, 7]
    where = third.ctypes.data
    del third
    assert state.answer().ctypes.data == where


CPU = Device(
    "cpu",
    "cpu",
    "a processor",
    "x86_64",
    2**34,
    capabilities=FrozenDict({"isa.kernels": Capability("isa.kernels", Level.NATIVE, Proof.PROBE)}),
    software=FrozenDict({"numba": "0.68", "torch": "2.13"}),
)


@pytest.mark.parametrize(
    ("sizes", "options", "rung", "reason"),
    [
        ((2, 64, 96, 9), {"linears": ("numba.row",), "head_dim": 64}, "numba.step", ""),
        ((2, 64, 96, 9), {"linears": ("numba.row", "numba.stored"), "head_dim": 64}, "numba.step", ""),
        ((2, 64, 96, 9), {"linears": ("numba.row", "torch.decode"), "head_dim": 64}, "numba.glue", "by torch.decode"),
        ((2, 64, 96, 9), {"linears": ("numba.row",), "head_dim": 64, "devices": 2}, "ref", "several devices"),
        ((2, 72, 96, 9), {"linears": ("numba.row",), "head_dim": 64}, "ref", "hidden is 72"),
        ((2, 64, 90, 9), {"linears": ("numba.row",), "head_dim": 64}, "ref", "feed_forward is 90"),
        ((2, 64, 96, 9), {"linears": ("numba.row",), "head_dim": 72}, "ref", "head_dim is 72"),
    ],
)
def test_the_ladder_and_its_reasons(sizes, options, rung, reason):
    climb = LADDER.climb(CPU, Case("decode_step", "f16", "f32", sizes, FrozenDict(options)))
    assert climb.rung.name == rung
    assert reason in " ".join(refusal.reason for refusal in climb.refusals)


@pytest.mark.parametrize("linears", [("numba.row",), ("numba.stored",), ("numba.row", "numba.stored")])
@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("name", ["numba.step", "numba.glue"])
def test_the_self_check_lets_both_rungs_pass_with_every_kind_of_weight(name, linears, adapters):
    options = FrozenDict({"linears": linears, "head_dim": 64, "adapters": adapters})
    case = Case("decode_step", "f16", "f32", (2, 64, 96, 83), options)
    assert proof.perform(LADDER.rung(name).to_json(), case.to_json()) == {"ok": True, "reason": ""}


def test_parts_of_a_key_head_even_out_the_threads():
    assert share(heads=8, kv_heads=1, threads=2) == 2
    assert share(heads=16, kv_heads=16, threads=2) == 1
    assert share(heads=4, kv_heads=1, threads=3) == 4  # 12 would be even, but there are only 4 heads
    assert share(heads=8, kv_heads=1, threads=1) == 1


def test_a_token_of_two_nodes_is_the_token_of_one(monkeypatch):
    """Chunks are cut from both ends, and which thread takes which changes nothing."""
    wanted = tokens(STEP, list(prepared("llama", "q8_0", "f32", 2))[1][3])
    for processor in (0, 1):
        getcpu = ctypes.CFUNCTYPE(ctypes.c_int)(lambda number=processor: number)
        address = ctypes.cast(getcpu, ctypes.c_void_p).value
        table = nodes.NodeTable.of(nodes.Halves(frozenset({0}), frozenset({1})), address)
        monkeypatch.setattr(nodes, "table", lambda table=table: table)
        found = tokens(STEP, list(prepared("llama", "q8_0", "f32", 2))[1][3])
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("format", ["q8_0", "q4_1"])
@pytest.mark.parametrize("threads", [1, 2])
def test_weights_that_stay_as_they_are_stored_give_the_same_token(format, threads):
    class AsStored(PackedParts):
        def linear(self, role):
            linear = super().linear(role)
            linear.rung, linear.state = MAPPED, MAPPED.prepare(encoded_of(self, role), dtype="f32", threads=threads)
            return linear

    def encoded_of(parts, role):
        weight = parts.weights.get(role, parts.weights["embed"]) if role == "head" else parts.weights[role]
        return encoded(weight, format)

    model = checkpoint("llama")
    found = []
    for kind in (PackedParts, AsStored):
        cache = Cache(shape(model), 32, "f32", ["cpu"] * len(shape(model).layers))
        state = STEP.prepare(Weights.bind(shape(model), kind(roles(model), format), 32), cache, threads=threads)
        prompt = STEP.reader(state)
        assert STEP.reads_without_torch(state)
        found.append((tokens(STEP, state), prompt.logits(prompt.read(IDS[:9], cache, 0))))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-5, atol=1e-4)
