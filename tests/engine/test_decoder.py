"""The decoder against transformers: the eight architectures, rope scalings, chunks, and one token after the other."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_decoders import KINDS, PlainParts, checkpoint, roles, shape

from rung.core.errors import ContextTooLong, UsageError
from rung.engine import decoder as decoder_module
from rung.engine.decoder import Decoder
from rung.engine.scheduling.kv_cache import BlockPool
from rung.engine.scheduling.sequence_reader import SequenceReader
from rung.models.card import Rope
from rung.ops.attention.torch_sdpa import RUNG as SDPA
from rung.ops.decode_step.ref import RUNG as REF
from rung.ops.decode_step.rope import Frequencies, rotate
from rung.ops.decode_step.weights import Weights

IDS = torch.randint(0, 128, (40,), generator=torch.Generator().manual_seed(1)).tolist()


def kl(expected, found):
    """The mean divergence over positions, in nats, computed in f64."""
    p, q = (torch.log_softmax(x.double(), -1) for x in (expected, found))
    return (p.exp() * (p - q)).sum(-1).mean().item()


def expected(model, ids=IDS):
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


def decoder_of(model, context=64, attend=SDPA.apply):
    return bound(shape(model), PlainParts(roles(model), attend), context)


def bound(described, parts, context):
    devices = [parts.device(layer) for layer in range(len(described.layers))]
    pool = BlockPool(described, context, "f32", devices)
    return SequenceReader(Decoder(Weights.bind(described, parts, context), pool, REF))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_those_of_transformers(kind):
    model = checkpoint(kind)
    found, reference = torch.from_numpy(decoder_of(model).logits(IDS)), expected(model)
    assert reference.std() > 0.1
    assert kl(reference, found) < 1e-9
    torch.testing.assert_close(found, reference, rtol=1e-4, atol=1e-4)


SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
        "rope_theta": 1e4,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4},
}


@pytest.mark.parametrize("scaling", SCALINGS)
def test_rope_scalings_equal_those_of_transformers(scaling):
    model = checkpoint("llama", rope_parameters=SCALINGS[scaling])
    plain = checkpoint("llama")
    found, reference = torch.from_numpy(decoder_of(model).logits(IDS)), expected(model)
    assert kl(reference, found) < 1e-9
    assert kl(reference, expected(plain)) > 1e-5, "the scaling changes nothing, so this test could not fail"
    assert scaling != "yarn" or shape(model).ropes[0].magnitude > 1.01


def test_longrope_uses_the_long_frequencies_above_the_original_context():
    rope = Rope(8, False, (1.0, 0.5, 0.2, 0.1), 1.1, (0.4, 0.2, 0.1, 0.05), 1.3, original_context=32)
    short, long = Frequencies.choose(rope, 32), Frequencies.choose(rope, 33)
    assert (short.inverse.tolist(), short.magnitude) == (pytest.approx([1.0, 0.5, 0.2, 0.1]), 1.1)
    assert (long.inverse.tolist(), long.magnitude) == (pytest.approx([0.4, 0.2, 0.1, 0.05]), 1.3)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_turns_pairs_and_leaves_the_rest(interleaved):
    x = torch.randn(3, 2, 12, generator=torch.Generator().manual_seed(0))
    rope = Frequencies(np.array([1.0, 0.3, 0.01, 0.7], np.float32), 1.0, 8, interleaved)
    cos, sin = map(torch.from_numpy, rope.table([5, 6, 7]))
    turned = x.clone()
    rotate(turned, cos, sin, interleaved)
    for token in range(3):
        for pair, frequency in enumerate([1.0, 0.3, 0.01, 0.7]):
            a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + 4)
            before = torch.complex(x[token, :, a], x[token, :, b])
            angle = torch.tensor((5 + token) * frequency)
            after = before * torch.complex(angle.cos(), angle.sin())
            torch.testing.assert_close(turned[token, :, a], after.real)
            torch.testing.assert_close(turned[token, :, b], after.imag)
    assert torch.equal(turned[..., 8:], x[..., 8:])


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3_text"])
def test_chunks_steps_and_repeated_calls_give_the_same_logits(kind, monkeypatch):
    model = checkpoint(kind)
    reference = expected(model)
    monkeypatch.setattr(decoder_module, "CHUNK", 7)
    decoder = decoder_of(model)
    torch.testing.assert_close(torch.from_numpy(decoder.logits(IDS)), reference, rtol=1e-4, atol=1e-4)
    decoder.cache.truncate(0)
    torch.testing.assert_close(torch.from_numpy(decoder.prefill(IDS[:30])), reference[29], rtol=1e-4, atol=1e-4)
    for position in range(30, 40):
        torch.testing.assert_close(
            torch.from_numpy(decoder.step(IDS[position])), reference[position], rtol=1e-4, atol=1e-4
        )
    assert decoder.cache.ids == IDS
    decoder.cache.truncate(12)
    torch.testing.assert_close(torch.from_numpy(decoder.prefill(IDS[12:20])), reference[19], rtol=1e-4, atol=1e-4)


def test_a_failed_call_leaves_the_count_and_can_be_repeated():
    model = checkpoint("llama")
    fails = []

    def attend(q, keys, values, **options):
        if fails:
            fails.pop()
            raise RuntimeError("once")
        return SDPA.apply(q, keys, values, **options)

    decoder = decoder_of(model, attend=attend)
    decoder.prefill(IDS[:5])
    for call in (lambda: decoder.step(IDS[5]), lambda: decoder.prefill(IDS[5:6])):
        fails.append(True)
        with pytest.raises(RuntimeError, match="once"):
            call()
        assert decoder.cache.ids == IDS[:5]
    torch.testing.assert_close(torch.from_numpy(decoder.step(IDS[5])), expected(model)[5], rtol=1e-4, atol=1e-4)


def test_what_cannot_be_computed_is_refused_before_anything_changes():
    decoder = decoder_of(checkpoint("llama"), context=16)
    decoder.prefill(IDS[:10])
    with pytest.raises(ContextTooLong, match="17 tokens do not fit into a context of 16"):
        decoder.prefill(IDS[10:17])
    with pytest.raises(UsageError, match="There is no token"):
        decoder.prefill([])
    for bad in (128, -1):
        with pytest.raises(UsageError, match="0 to 127"):
            decoder.step(bad)
    assert decoder.cache.length == 10
    decoder.prefill(IDS[10:16])
    with pytest.raises(ContextTooLong):
        decoder.step(1)


def test_layers_may_lie_on_several_devices():
    model = checkpoint("qwen3")
    moved = []

    class Split(PlainParts):
        def device(self, layer):
            moved.append(layer)
            return "cpu" if layer < 1 else "cpu:0"

    decoder = bound(shape(model), Split(roles(model), SDPA.apply), 64)
    torch.testing.assert_close(torch.from_numpy(decoder.logits(IDS)), expected(model), rtol=1e-4, atol=1e-4)
    assert set(moved) == {0, 1, 2}


class Counting:
    """A step that reads two rows without torch, gives the last token and its position, and fails where it is told
    to."""

    block = 0

    def __init__(self, fails_at=-1):
        self.fails_at, self.read = fails_at, []

    def rows_without_torch(self, state):
        return 2

    def prepare(self, weights, pool, *, threads):
        return pool

    def apply(self, state, batch):
        (rows,) = batch
        last = rows.start + len(rows.tokens) - 1
        if rows.start <= self.fails_at <= last:
            raise RuntimeError("once")
        self.read.append(len(rows.tokens))
        return np.array([[rows.tokens[-1], last]], np.float32)


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")


def counting(fails_at=-1):
    described = SimpleNamespace(vocabulary=128, kv_heads=2, head_dim=16, layers=(SimpleNamespace(window=None),) * 3)
    pool = BlockPool(described, 16, "f32", ["cpu"] * 3)
    step = Counting(fails_at)
    return SequenceReader(Decoder(SimpleNamespace(shape=described), pool, step, singles=4)), step.read


def test_short_prompts_are_read_a_few_tokens_at_a_time_while_torch_is_not_imported(without_torch):
    decoder, read = counting()
    assert decoder.prefill([7, 8, 9]).tolist() == [9, 2]
    assert decoder.prefill([3]).tolist() == [3, 3]
    assert decoder.cache.ids == [7, 8, 9, 3]
    assert read == [2, 1, 1]


def test_long_ones_are_not(without_torch):
    decoder, read = counting()
    decoder.prefill([7, 8, 9, 3, 4])
    assert read == [5]


def test_none_is_once_torch_is_there():
    decoder, read = counting()
    decoder.prefill([7, 8, 9])
    assert read == [3]


def test_a_failure_amid_a_short_prompt_leaves_the_count(without_torch):
    decoder, _ = counting(fails_at=3)
    decoder.prefill([5])
    with pytest.raises(RuntimeError, match="once"):
        decoder.prefill([6, 7, 8])
    assert decoder.cache.ids == [5]
