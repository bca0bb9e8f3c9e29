"""Originals for measuring: no grid of 4 bits remains in them, and a wider model computes what the narrow one does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rung import formats

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "quantization")


@pytest.mark.parametrize(
    ("name", "group"),
    [("q4_0", 32), ("q4_1", 32), ("q5_0", 32), ("q8_0", 32), ("q4_k", 32), ("q5_k", 32), ("q6_k", 16)],
)
def test_residues_to_the_old_grid_are_uniform(name, group):
    """The step is taken from the values themselves: the smallest difference between two of a group."""
    from originals import noise_of

    rng = np.random.default_rng(0)
    weights = rng.standard_t(4, (64, 512)).astype(np.float32) * np.float32(0.05)
    stored = formats.encode(weights, formats.get(name))
    values = formats.decode(stored).astype(np.float64)
    noisy = values + noise_of(stored, np.random.default_rng(1))
    grouped, moved = (each.reshape(-1, group) for each in (values, noisy))
    gaps = np.diff(np.sort(grouped, axis=1), axis=1)
    span = grouped.max(axis=1) - grouped.min(axis=1)
    gaps[gaps < 1e-3 * span[:, None]] = np.inf
    step = gaps.min(axis=1)
    residues = ((moved - grouped) / step[:, None]).reshape(-1)
    counts = np.histogram(residues, bins=20, range=(-0.5, 0.5))[0]
    expected = residues.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 44  # 19 degrees of freedom: once in 1,000


def test_a_wider_model_computes_nearly_the_same(monkeypatch):
    import widening

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300, hidden_size=72, intermediate_size=96, num_hidden_layers=3, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data *= 1 + 0.3 * torch.rand_like(parameter)
    ids = torch.randint(300, (1, 40))
    with torch.no_grad():
        before = model(ids).logits
        nearly = widening.widened(model, 96, 0).eval()(ids).logits
        assert 1e-3 < (nearly - before).norm() / before.norm() < 0.3
        monkeypatch.setattr(widening, "QUIET", 0.0)
        exact = widening.widened(model, 96, 0).eval()
        assert (exact(ids).logits - before).norm() / before.norm() < 1e-5
    assert all(float((values == 0).float().mean()) < 0.01 for values in exact.parameters())


def test_no_dimension_of_a_wider_model_follows_from_the_others():
    """Where one did, errors of rounding could hide in it, as they cannot in a model that was trained at that width."""
    import widening

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300, hidden_size=72, intermediate_size=96, num_hidden_layers=3, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    wide = widening.widened(LlamaForCausalLM(config).eval(), 96, 0).eval()
    with torch.no_grad():
        states = wide(torch.randint(300, (4, 100)), output_hidden_states=True).hidden_states
    for each in states:
        assert torch.linalg.matrix_rank(each.flatten(0, 1), rtol=1e-3) == 96
