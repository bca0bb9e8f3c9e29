"""How networks of transformers attend on a processor: what is seen, what is kept, and where torch is asked instead."""

import pytest
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.masking_utils import causal_mask_function, sdpa_mask

from rung.hub.networks import attention
from rung.hub.networks.attention import Rows, attend, mask, with_rows

GENERATOR = torch.Generator().manual_seed(5)


class Causal(torch.nn.Module):
    is_causal = True

    def __init__(self, groups):
        super().__init__()
        self.num_key_value_groups = groups


def inputs(tokens, cached, heads, kv_heads, size, dtype, value_size=None):
    shapes = ((heads, tokens, size), (kv_heads, cached, size), (kv_heads, cached, value_size or size))
    return [torch.randn(1, *shape, generator=GENERATOR).to(dtype) for shape in shapes]


def by_hand(query, key, value, scale):
    """Attention in float64 where a query sees all before it, the last one everything."""
    groups, (tokens, length) = query.shape[1] // key.shape[1], (query.shape[2], key.shape[2])
    q, k, v = query[0].double(), key[0].double(), value[0].double()
    scores = q @ k.repeat_interleave(groups, 0).transpose(1, 2) * scale
    scores += torch.full((tokens, length), -torch.inf).triu(length - tokens + 1)
    return (scores.softmax(-1) @ v.repeat_interleave(groups, 0)).transpose(0, 1)[None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow), torch.float32])
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 4, 4, 16), (1, 70, 8, 2, 64), (1, 33, 6, 1, 48), (5, 5, 4, 2, 32), (7, 40, 4, 4, 80), (3, 9, 4, 2, 24)],
)
def test_queries_see_all_before_them(shape, dtype):
    query, key, value = inputs(*shape, dtype)
    found, weights = attend(Causal(shape[2] // shape[3]), query, key, value, None, scaling=0.2)
    assert (found.shape, found.dtype, weights) == ((1, shape[0], shape[2], shape[4]), dtype, None)
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(found.double(), by_hand(query, key, value, 0.2), rtol=tolerance, atol=tolerance)


def test_the_scale_is_that_of_the_size_where_none_is_said():
    query, key, value = inputs(1, 9, 2, 2, 16, torch.float32)
    found, _ = attend(Causal(1), query, key, value, None)
    torch.testing.assert_close(found.double(), by_hand(query, key, value, 0.25), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("odd", ["values", "batch"])
def test_what_the_ladder_does_not_take_is_torchs_and_sees_the_same(odd, monkeypatch):
    """Values of another size than keys (MLA), and several sequences; over more keys than queries."""
    monkeypatch.setattr(attention, "climbed", None)
    query, key, value = inputs(3, 8, 4, 4, 32, torch.float32, 16 if odd == "values" else None)
    if odd == "batch":
        query, key, value = (torch.cat([each, each]) for each in (query, key, value))
    found, _ = attend(Causal(1), query, key, value, None, scaling=0.3)
    for row in found:
        want = by_hand(query[:1], key[:1], value[:1], 0.3)[0]
        torch.testing.assert_close(row.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["position_bias", "dropout", "softcap", "s_aux", "cache"])
def test_what_transformers_adds_to_attention_is_torchs(name, monkeypatch):
    query, key, value = inputs(1, 6, 2, 2, 16, torch.float32)
    calls = []
    monkeypatch.setattr(attention, "sdpa_attention_forward", lambda *args, **options: calls.append(options))
    attend(Causal(1), query, key, value, None, scaling=0.3, **{name: 0.5})
    assert calls[0][name] == 0.5
    assert calls[0]["scaling"] == 0.3
    attend(Causal(1), query, key, value, None, **{name: None})
    assert len(calls) == 1


def test_what_is_not_causal_sees_everything():
    query, key, value = inputs(3, 6, 2, 2, 16, torch.float32)
    found, _ = attend(Causal(1), query, key, value, None, is_causal=False)
    each = [by_hand(query[:, :, n : n + 1], key, value, 0.25) for n in range(3)]
    torch.testing.assert_close(found.double(), torch.cat(each, dim=1), rtol=1e-5, atol=1e-5)


def test_a_mask_is_obeyed():
    query, key, value = inputs(1, 6, 2, 2, 16, torch.float32)
    visible = torch.tensor([True, False, True, True, False, True])
    found, _ = attend(Causal(1), query, key, value, visible[None, None, None])
    want = by_hand(query, key[:, :, visible], value[:, :, visible], 0.25)
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)


def test_a_mask_is_made_only_where_not_all_before_is_seen():
    assert mask(1, 3, 8, q_offset=5) is None
    padded = torch.tensor([[False] * 2 + [True] * 6])
    for options in (
        {"attention_mask": padded},
        {"allow_is_causal_skip": False},
        {"mask_function": lambda batch, head, query, key: (key <= query) & (key > query - 2), "local_size": 2},
    ):
        own = {"mask_function": causal_mask_function} | options
        found = mask(1, 3, 8, q_offset=5, **options)
        assert torch.equal(found, sdpa_mask(1, 3, 8, q_offset=5, **own))
        assert found.shape == (1, 1, 3, 8)


def test_what_is_held_is_not_copied_and_equals_transformers_own_layer():
    mine, theirs = Rows(16), DynamicLayer()
    places = set()
    for tokens in (4, 1, 1, 3):
        key, value = inputs(1, tokens, 1, 2, 8, torch.bfloat16)[1:]
        for found, want in zip(mine.update(key, value), theirs.update(key, value), strict=True):
            assert torch.equal(found, want)
        places.add((mine.keys.data_ptr(), mine.values.data_ptr()))
        assert mine.get_seq_length() == theirs.get_seq_length()
    assert len(places) == 1
    mine.crop(-2)
    key, value = inputs(1, 1, 1, 2, 8, torch.bfloat16)[1:]
    assert torch.equal(mine.update(key, value)[0], torch.cat([theirs.keys[:, :, :-2], key], dim=2))
    mine.reset()
    assert mine.get_seq_length() == 0
    assert mine.update(key, value)[0].shape == (1, 2, 1, 8)


def test_layers_with_a_window_stay_transformers_own():
    import transformers

    config = transformers.Gemma3TextConfig(num_hidden_layers=6, sliding_window=4)
    kinds = [type(layer).__name__ for layer in with_rows(DynamicCache(config=config), 32).layers]
    assert kinds == ["DynamicSlidingWindowLayer"] * 5 + ["Rows"]
