"""The cache: sizes as planned, writing by index, prefixes."""

import pytest
import torch

from rung.core.errors import ContextTooLong
from rung.engine.kv_cache import Cache
from rung.models.card import Decoder, Layer, Rope
from rung.models.decoder_memory import activation_bytes, cache_bytes

SHAPE = Decoder(
    model_type="llama",
    layers=(Layer(None, 0), Layer(4, 0), Layer(None, 0)),
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    feed_forward=96,
    vocabulary=128,
    context=256,
    norm_epsilon=1e-6,
    norm_offset=0.0,
    activation="silu",
    attention_scale=0.25,
    ropes=(Rope(16, False, (1.0,) * 8),),
)
DEVICES = ["cpu"] * 3


@pytest.mark.parametrize(("dtype", "width"), [("f32", 4), ("f16", 2), ("bf16", 2)])
def test_it_takes_the_bytes_that_the_plan_counts(dtype, width):
    cache = Cache(SHAPE, 40, dtype, DEVICES)
    held = sum(tensor.numel() * tensor.element_size() for tensor in cache.keys + cache.values)
    assert held == cache_bytes(SHAPE, 40, dtype) == 2 * 3 * 2 * 40 * 16 * width
    assert cache_bytes(SHAPE, 40, dtype, layers=1) * 3 == held


def test_what_is_written_at_a_position_is_read_there():
    cache = Cache(SHAPE, 40, "f32", DEVICES)
    keys, values = torch.randn(5, 2, 16), torch.randn(5, 2, 16)
    cache.write(1, 7, keys, values)
    read_keys, read_values = cache.read(1, 12)
    assert torch.equal(read_keys[7:], keys)
    assert torch.equal(read_values[7:], values)
    assert not read_keys[:7].any()
    assert not cache.read(0, 12)[0].any()


def test_ids_prefixes_and_room():
    cache = Cache(SHAPE, 8, "f16", DEVICES)
    assert cache.shared([1, 2]) == 0
    cache.advance([5, 6, 7])
    assert cache.length == 3
    assert cache.shared([5, 6, 9, 7]) == 2
    assert cache.shared([5]) == 1
    assert cache.shared([5, 6, 7, 8]) == 3
    cache.room(3, 5)
    with pytest.raises(ContextTooLong) as caught:
        cache.room(3, 6)
    assert "9 tokens" in caught.value.cause
    assert caught.value.ways_out
    cache.truncate(1)
    assert cache.ids == [5]


def test_activations_grow_with_the_chunk_and_stop_at_its_length():
    assert activation_bytes(SHAPE, 100) < activation_bytes(SHAPE, 400)
    long = activation_bytes(SHAPE, 4096) - activation_bytes(SHAPE, 2048)
    assert 0 < long <= 2048 * 4 * (2 * 2 * 16 + 512)  # the converted cache and the mask, no more rows
    assert activation_bytes(SHAPE, 4096, chunk=64) < activation_bytes(SHAPE, 4096)
