"""The cache: sizes as planned, writing by index, prefixes."""

import ctypes
import tracemalloc
from dataclasses import replace

import pytest
import torch
from tests.tiny import gguf_vocabulary, tiny_checkpoint

from rung.core.errors import ContextTooLong, OutOfMemory
from rung.engine.load import load
from rung.engine.scheduling.kv_cache import BlockPool, Cache
from rung.engine.scheduling.sequence_reader import SequenceReader
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
    pool = BlockPool(SHAPE, 48, dtype, DEVICES)
    size = sum(tensor.numel() * tensor.element_size() for layer in pool.tensors for tensor in layer)
    assert size == cache_bytes(SHAPE, 48, dtype) == 2 * 3 * 2 * 48 * 16 * width
    assert size == sum(member.memory.size for member in pool.members)
    assert cache_bytes(SHAPE, 48, dtype, layers=1) * 3 == size


@pytest.mark.parametrize("size", [32, 64, 96])
@pytest.mark.parametrize("sequences", [1, 3])
def test_a_quantized_one_takes_17_bytes_for_16_values(size, sequences):
    described = replace(SHAPE, head_dim=size)
    pool = BlockPool(described, 100, "q8_0", DEVICES, 16, sequences=sequences)
    taken = sum(member.memory.size for member in pool.members)
    assert taken == cache_bytes(described, 100, "q8_0", block=16, sequences=sequences)
    assert 32 * taken == 17 * cache_bytes(described, 100, "f16", block=16, sequences=sequences)


@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_what_is_written_at_a_position_is_read_there(dtype, block):
    """By tensors and by arrays, over the end of a block, beside another sequence; other layers stay as they are."""
    pool = BlockPool(SHAPE, 40, dtype, DEVICES, block, blocks=6)
    other, cache = Cache(pool), Cache(pool)
    other.reserve(16)
    cache.reserve(40)
    keys, values = (torch.randn(12, 2, 16).to(pool.tensors[0][0].dtype) for _ in range(2))
    cache.write(1, 7, keys[:5], values[:5])
    cache.write_arrays(1, 12, keys[5:].numpy(), values[5:].numpy())
    for found, expected in zip(
        (*cache.read(1, 0, 19), *map(torch.from_numpy, cache.arrays(1, 0, 19))), 2 * (keys, values), strict=True
    ):
        assert torch.equal(found[7:], expected)
        assert not found[:7].any()
    assert not cache.read(0, 0, 30)[0].any()
    assert not cache.read(2, 0, 30)[1].any()
    assert not other.read(1, 0, 16)[0].any()


def test_the_table_names_the_blocks_of_each_group():
    """Layers with a window have a table of their own."""
    pool = BlockPool(SHAPE, 40, "f32", DEVICES, 16, blocks=4)
    assert [pool.layer(layer).group for layer in range(3)] == [0, 1, 0]
    cache = Cache(pool)
    cache.reserve(33)
    for layer in range(3):
        lies = pool.layer(layer)
        table = ctypes.cast(cache.table(lies.group), ctypes.POINTER(ctypes.c_int64))
        cache.write(layer, 35 if layer else 1, torch.full((1, 2, 16), 3.0), torch.full((1, 2, 16), 4.0))
        at = table[2 if layer else 0] + lies.offset + lies.head + (3 if layer else 1) * lies.row
        assert [ctypes.c_float.from_address(address).value for address in (at, at + lies.values)] == [3.0, 4.0]


def test_blocks_are_given_back_and_taken_again():
    pool = BlockPool(SHAPE, 40, "f32", DEVICES, 16, blocks=4)
    first, second = Cache(pool), Cache(pool)
    first.reserve(40)
    second.reserve(16)
    assert [member.free for member in pool.members] == [0, 0]
    with pytest.raises(OutOfMemory, match="cache of keys and values is full"):
        second.reserve(17)
    first.release()
    second.reserve(40)
    assert second.length == first.length == 0
    assert [member.free for member in pool.members] == [1, 1]


def test_ids_prefixes_and_room():
    cache = Cache(BlockPool(SHAPE, 8, "f16", DEVICES))
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


def test_activations_are_what_a_prompt_takes_whose_results_are_kept_for_the_next_chunk(tmp_path):
    wide = {"hidden_size": 512, "intermediate_size": 512, "num_attention_heads": 8, "head_dim": 64}
    tiny_checkpoint(tmp_path, "llama", **wide, max_position_embeddings=2048)
    gguf_vocabulary(tmp_path)
    model = load(str(tmp_path), context=2048, threads=1, device="cpu", format="q8_0")
    with SequenceReader(model.backend) as reader:
        reader.prefill(list(range(3, 67)))  # compiles
        tracemalloc.start()  # counts arrays of NumPy
        try:
            reader.prefill([3 + at % 200 for at in range(1200)])
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert model.plan.placements[0].memory.activations == pytest.approx(peak, rel=0.1)
