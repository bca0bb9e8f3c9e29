"""Batches of tokens as one program against the decoder of smaller ops, for each architecture."""

import ctypes
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
from tiny_decoders import KINDS, PlainParts, checkpoint, roles, shape

from rung import formats
from rung.core.types import Capability, Case, Device, Level, Proof
from rung.core.value import FrozenDict
from rung.engine.scheduling.kv_cache import BlockPool, Cache
from rung.formats.families import grouped
from rung.kernels.cpu import nodes
from rung.kernels.cpu.decode.attention import heads_at_once
from rung.models.adapters.adapter import LowRank
from rung.ops import proof
from rung.ops.attention.numpy_sdpa import RUNG as ARRAY_ATTENTION
from rung.ops.attention.ref import RUNG as REF_ATTENTION
from rung.ops.decode_step import LADDER, shape_class
from rung.ops.decode_step.low_rank import BoundAdapter
from rung.ops.decode_step.numba_step import RUNG as STEP
from rung.ops.decode_step.numpy_step import RUNG as ARRAY_STEP
from rung.ops.decode_step.parts import SequenceRows
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
        self.encoded = partial(encoded, weight, format)
        self.state = self.rung.prepare(self.encoded(), dtype="f32", threads=1)
        self.without_torch = format not in READ_AS_STORED

    def __call__(self, x):
        return self.rung.apply(self.state, x)

    def multiply(self, x, room=None):
        if room is None:
            return self.rung.multiply(self.state, x)
        y = room.array(len(x), self.state.shape[0])
        y[:] = np.nan  # as what another product left there
        self.rung.multiply_into(self.state, x, y)
        return y


class PackedParts(PlainParts):
    def __init__(self, weights, format):
        super().__init__(weights, REF_ATTENTION.apply)
        self.format = format

    def linear(self, role):
        weight = self.weights.get(role, self.weights["embed"]) if role == "head" else self.weights[role]
        return RowLinear(weight, self.format)


IDS = torch.randint(0, 128, (18,), generator=torch.Generator().manual_seed(1)).tolist()


def cache_of(described, context=32, dtype="f32", block=16):
    """A cache in blocks, which do not lie in their order."""
    pool = BlockPool(described, context, dtype, ["cpu"] * len(described.layers), block, blocks=2 * -(-context // block))
    others = [Cache(pool) for _ in range(2)]
    for other in others:
        other.reserve(block)
    cache = Cache(pool)
    cache.reserve(block)
    others[0].release()
    cache.reserve(context)
    return cache


def bind(rung, described, parts, cache, threads=2):
    return rung.prepare(Weights.bind(described, parts, cache.context), cache.pool, threads=threads)


def prepared(kind, format, cache_dtype, threads):
    """A rung with its state and a cache: ref and numba.step."""
    model = checkpoint(kind)
    described = shape(model)
    for rung in (REF, STEP):
        cache = cache_of(described, dtype=cache_dtype)
        yield rung, bind(rung, described, PackedParts(roles(model), format), cache, threads), cache


def logits(rung, state, cache, ids, start, adapter=None):
    """Logits after each of some tokens that are read together."""
    return torch.from_numpy(rung.apply(state, [SequenceRows(ids, start, cache, len(ids), adapter)]).copy())


def tokens(rung, state, cache):
    """Logits of one token after the other."""
    return torch.cat([logits(rung, state, cache, [token], index) for index, token in enumerate(IDS)])


def both(cache):
    """Keys and values of every layer at the positions of ``IDS``."""
    return [part for layer in range(len(cache.pool.tensors)) for part in cache.read(layer, 0, cache.context)]


def fresh(cache, state, ids):
    """The cache, with these tokens in it."""
    STEP.apply(state, [SequenceRows(ids, 0, cache, 0)])
    return cache


def assert_close(found, expected):
    """Both multiply the same int8 activations; where one rounds to the next integer, a little differs."""
    assert (found - expected).abs().max() < 0.1 * expected.std()
    assert (found - expected).square().mean().sqrt() < 0.02 * expected.std()


class ArrayAttention(PackedParts):
    """Packed weights, and an attention for arrays and tensors."""

    def attention(self, layer):
        return BothAttention()


class BothAttention:
    """Attention of arrays and of tensors."""

    def __call__(self, *arguments, **options):
        return REF_ATTENTION.apply(*arguments, **options)

    def attend(self, *arguments, **options):
        return ARRAY_ATTENTION.attend(*arguments, **options)


class Arrays:
    """A linear and an attention that know arrays only."""

    without_torch = True

    def __init__(self, weight=None):
        self.weight = weight

    def multiply(self, x):
        return x @ self.weight.T

    def attend(self, *arguments, **options):
        return ARRAY_ATTENTION.attend(*arguments, **options)


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
        cache = cache_of(described)
        state = bind(rung, described, parts, cache, threads=1)
        cuts = ((IDS[:7], 0), (IDS[7:16], 7), (IDS[16:17], 16), (IDS[17:], 17))
        found.append(np.concatenate([logits(rung, state, cache, ids, start) for ids, start in cuts]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-4 * np.abs(found[0]).max())


def test_columns_in_an_order_of_their_own_are_refused():
    options = FrozenDict({"head_dim": 64, "linears": ("numba.row",), "ordered": True})
    verdict = LADDER.rung("numba.step").verdict(Case("decode_step", "f32", "f32", (2, 64, 96, 83), options), CPU)
    assert "order of their own" in verdict.reason


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_equal_those_of_the_smaller_ops(kind):
    turn = list(KINDS).index(kind) % 2
    threads, cache_dtype = ((1, "f32"), (2, "f16"))[turn]
    expected, found = prepared(kind, "q8_0", cache_dtype, threads)
    assert_close(tokens(*found), tokens(*expected))
    for mine, theirs in zip(both(found[2]), both(expected[2]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.05, atol=0.1)
        assert not mine[len(IDS) :].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", ["q8_0", "f16"])
def test_prompts_of_every_rung_equal_those_through_torch(kind, format):
    """Packed weights are read without torch, floats as they are stored with it, and so is what the glue alone reads."""
    dtype, threads = ((("f16", 1), ("f32", 2)))[list(KINDS).index(kind) % 2]
    expected, found = prepared(kind, format, dtype, threads)
    assert STEP.rows_without_torch(found[1]) == (None if format == "q8_0" else 16)
    parts = ((IDS[:7], 0), (IDS[7:8], 7), (IDS[8:16], 8), (IDS[16:], 16))
    assert_close(*(torch.cat([logits(*each, ids, start) for ids, start in parts]) for each in (found, expected)))
    for mine, theirs in zip(both(found[2]), both(expected[2]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.05, atol=0.1)
        assert not mine[len(IDS) :].any()


def test_mixed_formats_share_their_activations():
    """q4_k and q6_k want different sums of the same activations, as a Q4_K_M file mixes them."""

    class Mixed(PackedParts):
        def linear(self, role):
            self.format = "q6_k" if role.endswith((".v", ".up", "down", "head")) else "q4_k"
            return super().linear(role)

    model = checkpoint("llama", hidden_size=256, intermediate_size=512, num_hidden_layers=2)
    found = []
    for rung in (REF, STEP):
        cache = cache_of(shape(model))
        found.append(tokens(rung, bind(rung, shape(model), Mixed(roles(model), "q4_k"), cache), cache))
    assert_close(found[1], found[0])


@pytest.mark.parametrize("format", READ_AS_STORED)
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_weights_stored_as_floats_give_the_same_sums(kind, format):
    """Nothing is rounded to int8 here: only the order of sums differs. The vocabulary is no multiple of 16."""
    reference, found = prepared(kind, format, "f32", 2)
    expected = tokens(*reference)
    torch.testing.assert_close(tokens(*found), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    for mine, theirs in zip(both(found[2]), both(reference[2]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


def test_floats_and_packed_weights_stand_side_by_side():
    class Mixed(PackedParts):
        def linear(self, role):
            self.format = "bf16" if role.endswith((".k", ".up", "head")) else "q8_0"
            return super().linear(role)

    model = checkpoint("llama", vocab_size=131)
    found = []
    for rung in (REF, STEP):
        cache = cache_of(shape(model))
        found.append(tokens(rung, bind(rung, shape(model), Mixed(roles(model), "q8_0"), cache), cache))
    assert_close(found[1], found[0])


def change_of(role, shape, rank, seed=0):
    """A LoRA for a weight, a DoRA for some."""
    random = np.random.default_rng([seed, *map(ord, role)])
    down, up = random.standard_normal((rank, shape[1])), random.standard_normal((shape[0], rank)) / 8
    magnitude = 1 + random.random(shape[0]) if role.endswith((".o", ".up", ".gate_up", ".v")) else None
    return LowRank(*(part.astype(np.float32) for part in (down, up)), 0.5, magnitude)


def adapter_of(weights, rank=5, seed=0, without=()):
    """An adapter of every linear whose role does not end so."""
    changes = {
        each.role: [change_of(each.role, each.linear.encoded().shape, rank, seed)]
        for each, _ in weights.linears
        if not each.role.endswith(tuple(without))
    }
    return BoundAdapter(weights, changes, 2)


class Changed:
    """A linear with a change that torch adds."""

    without_torch = False

    def __init__(self, role, linear, rank=5):
        self.linear, weight = linear, formats.decode(linear.encoded())
        change = change_of(role, weight.shape, rank)
        delta = change.scale * change.up.astype(np.float64) @ change.down
        self.delta, self.factor = torch.from_numpy(delta.astype(np.float32)), 1.0
        if change.magnitude is not None:
            self.factor = torch.from_numpy(change.magnitude / np.linalg.norm(weight + delta, axis=1)).float()

    def __call__(self, x):
        return (self.linear(x) + x @ self.delta.T) * self.factor


class ChangedParts(PackedParts):
    """The same weights with changes that torch adds."""

    def linear(self, role):
        return Changed(role, super().linear(role))


@pytest.mark.parametrize("format", ["q8_0", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_stand_beside_weights_of_every_architecture(kind, format):
    """Tokens and prompts of the compiled rung, against torch beside the same weights."""
    model, found = checkpoint(kind, vocab_size=131), []
    for rung, parts in ((REF, ChangedParts), (STEP, PackedParts)):
        cache = cache_of(shape(model), 48)
        weights = Weights.bind(shape(model), parts(roles(model), format), cache.context)
        adapter = adapter_of(weights) if rung is STEP else None
        state = rung.prepare(weights, cache.pool, threads=2)
        many = 18 if format == "q8_0" else 8  # rows of floats as they are stored that torch does not read
        cuts = [(IDS[:many], 0), (IDS[:7], many), *(([token], many + 7 + index) for index, token in enumerate(IDS))]
        found.append(torch.cat([logits(rung, state, cache, ids, start, adapter) for ids, start in cuts]))
    assert_close(found[1], found[0])


@pytest.mark.parametrize("rung", [REF, ARRAY_STEP])
def test_the_plain_rungs_add_adapters_as_the_compiled_one(rung):
    """Three sequences, two of which have adapters of their own, in one batch."""
    model, found = checkpoint("llama", vocab_size=131), []
    for each in (rung, STEP):
        pool = BlockPool(shape(model), 32, "f32", ["cpu"] * 3, 16, blocks=6)
        weights = Weights.bind(shape(model), ArrayAttention(roles(model), "q8_0"), 32)
        changes = [None, adapter_of(weights), adapter_of(weights, 19, 1, without=(".q", ".down"))]
        caches = [Cache(pool) for _ in changes]
        for cache in caches:
            cache.reserve(len(IDS))
        state = each.prepare(weights, pool, threads=2)
        for start, end in ((0, 9), (9, 11), (11, 18)):
            batch = [
                SequenceRows(IDS[start:end], start, cache, 2, adapter)
                for cache, adapter in zip(caches, changes, strict=True)
            ]
            found.append(torch.from_numpy(each.apply(state, batch).copy()))
    for plain, compiled in zip(found[:3], found[3:], strict=True):
        assert_close(compiled, plain)


def test_a_call_can_be_repeated():
    _, (_, state, cache) = prepared("qwen3", "q8_0", "f16", 2)
    first = logits(STEP, state, cache, [5], 0)
    logits(STEP, state, cache, [9], 1)
    assert torch.equal(logits(STEP, state, cache, [5], 0), first)


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


@pytest.mark.parametrize(
    ("options", "software", "reason"),
    [
        ({"linears": ("numba.row",), "head_dim": 96}, {"torch": "2.13"}, ""),
        ({"linears": ("numba.stored",), "head_dim": 64}, {}, ""),
        ({"linears": ("numba.stored",), "head_dim": 64}, {"torch": "2.13"}, "stored as floats"),
        ({"linears": ("numba.row",), "head_dim": 80}, {"torch": "2.13"}, "not 80"),
        ({"linears": ("numba.row",), "head_dim": 64, "devices": 2}, {"torch": "2.13"}, "several devices"),
    ],
)
def test_a_cache_in_q8_0_is_for_whole_steps_alone(options, software, reason):
    device = replace(CPU, software=FrozenDict({"numba": "0.68", **software}))
    climb = LADDER.climb(device, Case("decode_step", "q8_0", "f32", (2, 64, 96, 9), FrozenDict(options)))
    reasons = " ".join(refusal.reason for refusal in climb.refusals)
    assert (climb.rung.name if climb.rung else "") == ("" if reason else "numba.step")
    assert reason in reasons
    others = [rung for rung in LADDER.rungs if not {"cpu", "*"}.isdisjoint(rung.kinds)][1:]
    assert reasons.count("no kernel for q8_0") == (len(others) if reason else 0)


@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("format", ["q8_0", "q5_1", "q4_0"])
def test_the_self_check_reads_a_cache_in_blocks(format, size):
    case = Case(
        "decode_step", format, "f32", (2, 64, 96, 83), FrozenDict({"linears": ("numba.row",), "head_dim": size})
    )
    assert proof.perform(LADDER.rung("numba.step").to_json(), case.to_json()) == {"ok": True, "reason": ""}


@pytest.mark.parametrize("linears", [("numba.row",), ("numba.stored",), ("numba.row", "numba.stored")])
@pytest.mark.parametrize("name", ["numba.step", "numba.glue"])
def test_the_self_check_lets_both_rungs_pass_with_every_kind_of_weight(name, linears):
    options = FrozenDict({"linears": linears, "head_dim": 64})
    case = Case("decode_step", "f16", "f32", (2, 64, 96, 83), options)
    assert proof.perform(LADDER.rung(name).to_json(), case.to_json()) == {"ok": True, "reason": ""}


def test_the_self_check_of_parts_compares_them_with_the_whole(monkeypatch):
    """And only where a model is divided."""
    from rung.ops.decode_step.numba_step import Step

    options = {"linears": ("numba.row",), "head_dim": 64}
    whole, part = (
        Case("decode_step", "f16", "f32", (2, 64, 96, 83), FrozenDict(options | more)) for more in ({}, {"part": True})
    )
    rung = LADDER.rung("numba.step").to_json()
    right = Step.finish
    monkeypatch.setattr(Step, "finish", lambda self, state, batch, hidden: 1.1 * right(self, state, batch, hidden))
    assert proof.perform(rung, whole.to_json())["ok"]
    assert proof.perform(rung, part.to_json())["reason"].startswith("layers in two parts: ")
    monkeypatch.setattr(Step, "finish", right)
    assert proof.perform(rung, part.to_json()) == {"ok": True, "reason": ""}
    assert shape_class(whole) != shape_class(part)


def test_heads_of_a_key_head_even_out_the_threads():
    assert heads_at_once(kv_heads=1, group=8, tokens=1, threads=2) == 4
    assert heads_at_once(kv_heads=16, group=1, tokens=1, threads=2) == 4
    assert heads_at_once(kv_heads=1, group=4, tokens=1, threads=3) == 1
    assert heads_at_once(kv_heads=1, group=4, tokens=2, threads=4) == 2
    assert heads_at_once(kv_heads=1, group=8, tokens=1, threads=1) == 4


def test_a_token_of_two_nodes_is_the_token_of_one(monkeypatch):
    """Chunks are cut from both ends, and which thread takes which changes nothing."""
    expected = tokens(*list(prepared("llama", "q8_0", "f32", 2))[1])
    for processor in (0, 1):
        getcpu = ctypes.CFUNCTYPE(ctypes.c_int)(lambda number=processor: number)
        address = ctypes.cast(getcpu, ctypes.c_void_p).value
        table = nodes.NodeTable.of(nodes.Halves(frozenset({0}), frozenset({1})), address)
        monkeypatch.setattr(nodes, "table", lambda table=table: table)
        found = tokens(*list(prepared("llama", "q8_0", "f32", 2))[1])
        assert torch.equal(found, expected)


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
        cache = cache_of(shape(model))
        state = bind(STEP, shape(model), kind(roles(model), format), cache, threads)
        assert STEP.rows_without_torch(state) is None
        found.append((tokens(STEP, state, cache), logits(STEP, state, cache, IDS[:9], 0)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-5, atol=1e-4)


FORMATS = ("q4_0", "q8_0", "q4_k", "q6_k", "nf4:64", "q5_0")


class Formats(PackedParts):
    """A weight in each format in turn."""

    def linear(self, role):
        columns = self.weights["embed" if role == "head" else role].shape[1]
        able = [format for format in FORMATS if formats.get(format).divides(columns)]
        self.format = able[sum(map(ord, role)) % len(able)]
        return super().linear(role)


@pytest.mark.parametrize(
    ("kind", "dtype", "adapters"),
    [
        ("llama", "f32", False),
        ("gemma2", "f16", False),
        ("gemma3_text", "f32", True),
        ("qwen3", "f16", True),
        ("gemma2", "q8_0", False),
        ("qwen3", "q8_0", True),
    ],
)
def test_a_row_gives_the_same_bytes_whatever_is_computed_beside_it(kind, dtype, adapters):
    """One token after the other on one thread, against rows of three sequences in batches of every size up to tiles,
    cut anywhere, on two threads, in blocks that lie elsewhere. The columns of weights are more than a tile takes at
    once. With adapters, two of the sequences have one of their own: of more ranks than are summed at once, and of some
    that are left over, which leaves out some weights."""
    model = checkpoint(kind, hidden_size=256, intermediate_size=2560, vocab_size=131)
    described, random = shape(model), np.random.default_rng(3)
    weights = Weights.bind(described, Formats(roles(model), ""), 64)
    changes = [None, adapter_of(weights, 21), adapter_of(weights, 6, 1, (".k", ".up", "head"))]
    changes = changes if adapters else [None] * 3
    prompts = [random.integers(0, 128, 61).tolist() for _ in range(3)]
    alone = cache_of(described, 64, dtype)
    state = STEP.prepare(weights, alone.pool, threads=1)
    assert STEP.same_bytes(state)
    expected = [
        torch.cat([logits(STEP, state, alone, [token], at, adapter) for at, token in enumerate(ids)])
        for ids, adapter in zip(prompts, changes, strict=True)
    ]
    pool = BlockPool(described, 64, dtype, ["cpu"] * len(described.layers), 32, blocks=6)
    together = STEP.prepare(Weights.bind(described, Formats(roles(model), ""), 64), pool, threads=2)
    found = run_cut(together, [Cache(pool) for _ in prompts], prompts, random, changes)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("window", "block"), [(8, 16), (16, 16), (40, 16), (41, 32)])
def test_windows_that_are_given_back_change_no_bytes(window, block):
    """Sequences that give blocks back take those of others, which hold other keys and values; one is read with ref."""
    model = checkpoint("gemma3_text", hidden_size=256, sliding_window=window, max_position_embeddings=256)
    described, random = shape(model), np.random.default_rng(4)
    prompts = [random.integers(0, 128, 180).tolist() for _ in range(3)]
    whole = cache_of(described, 192)
    state = bind(STEP, described, PackedParts(roles(model), "q8_0"), whole, threads=1)
    expected = [logits(STEP, state, whole, ids, 0) for ids in prompts]
    pool = BlockPool(described, 192, "f32", ["cpu"] * len(described.layers), block, sequences=3)
    assert pool.windows
    together = STEP.prepare(Weights.bind(described, PackedParts(roles(model), "q8_0"), 192), pool, threads=2)
    caches = [Cache(pool) for _ in prompts]
    for mine, theirs in zip(run_cut(together, caches, prompts, random, [None] * 3), expected, strict=True):
        assert torch.equal(mine, theirs)
    assert all(
        sum(entry is not None for entry in cache.blocks[group]) <= window // block + 3
        for cache in caches
        for group in pool.windows
    )
    reference = REF.prepare(Weights.bind(described, PackedParts(roles(model), "q8_0"), 192), pool, threads=2)
    for token, cache, theirs in zip((5, 6, 7), caches, prompts, strict=True):
        cache.reserve(181)
        found = torch.from_numpy(REF.apply(reference, [SequenceRows([token], 180, cache)]).copy())
        assert_close(found, logits(STEP, state, fresh(whole, state, theirs), [token], 180))


def run_cut(state, caches, prompts, random, adapters):
    """Logits of each prompt, read in batches of random parts of all of them."""
    done, found = [0] * len(prompts), [[] for _ in prompts]
    while any(at < len(ids) for at, ids in zip(done, prompts, strict=True)):
        batch, numbers = [], []
        for number in random.permutation(len(prompts)):
            count = min(int(random.integers(0, 24)), len(prompts[number]) - done[number])
            if count:
                caches[number].reserve(done[number] + count)
                ids = prompts[number][done[number] : done[number] + count]
                batch.append(SequenceRows(ids, done[number], caches[number], count, adapters[number]))
                numbers.append(number)
                done[number] += count
        if batch:
            rows = torch.from_numpy(STEP.apply(state, batch).copy())
            for each in batch:
                each.cache.advance(each.tokens)
            for number, part in zip(numbers, rows.split([len(each.tokens) for each in batch]), strict=True):
                found[number].append(part)
    return [torch.cat(parts) for parts in found]


def test_logits_of_some_rows_are_those_of_all():
    """A head of fewer rows than the layers: none, the last of each sequence, and those of a part."""
    model = checkpoint("gemma2")
    described = shape(model)
    first = cache_of(described, 64)
    state = bind(STEP, described, PackedParts(roles(model), "q8_0"), first)
    second = Cache(first.pool)
    second.reserve(16)
    whole = STEP.apply(state, [SequenceRows(IDS[:5], 0, first, 5), SequenceRows(IDS[5:9], 0, second, 4)]).copy()
    for counts in ((1, 1), (0, 1), (0, 0), (3, 0), (2, 4)):
        batch = [SequenceRows(IDS[:5], 0, first, counts[0]), SequenceRows(IDS[5:9], 0, second, counts[1])]
        part = STEP.apply(state, batch)
        np.testing.assert_array_equal(part, np.concatenate([whole[5 - counts[0] : 5], whole[9 - counts[1] :]]))
