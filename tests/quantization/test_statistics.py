"""Statistics of a model on a text, beside transformers' own network and autograd."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rung.core.errors import BadFile, UsageError
from rung.models import open_card
from rung.models.reader import Reader
from rung.quantization.network import Network, logits
from rung.quantization.statistics import Sensitivity, gather
from tests.tiny import tiny_checkpoint

MODELS = ("llama", "gemma2", "gemma3_text", "phi3", "qwen3")


def ids(count, length, vocabulary, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, vocabulary, (count, length)))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))


def logits_of(card, windows, override=lambda role: None):
    with Reader(card) as reader, torch.no_grad():
        network = Network(card, reader, windows.shape[1], override)
        hidden = network.embed(windows)
        for layer in network.layers():
            hidden = network.forward(layer, hidden)
        return logits(card.decoder, network.normed(hidden), network.weight(network.head_role))


@pytest.mark.parametrize("model_type", MODELS)
def test_the_network_is_the_one_of_transformers(model_type, tmp_path):
    model = tiny_checkpoint(tmp_path / "m", model_type)
    card = open_card(tmp_path / "m")
    windows = ids(2, 24, card.decoder.vocabulary)
    with torch.no_grad():
        expected = model(input_ids=windows).logits
    torch.testing.assert_close(logits_of(card, windows), expected, rtol=1e-3, atol=2e-4)


def test_moments_are_the_mean_squares_of_what_enters_a_linear(tmp_path):
    model = tiny_checkpoint(tmp_path / "m", "llama")
    card = open_card(tmp_path / "m")
    windows = ids(3, 64, card.decoder.vocabulary)
    inputs = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(
                lambda module, arguments, out, name=name: inputs.update({name: arguments[0].detach()})
            )
    with torch.no_grad():
        model(input_ids=windows)
    found = gather(card, windows)
    for role, name in (("q", "self_attn.q_proj"), ("o", "self_attn.o_proj"), ("down", "mlp.down_proj")):
        x = inputs[f"model.layers.1.{name}"].reshape(-1, inputs[f"model.layers.1.{name}"].shape[-1])
        np.testing.assert_allclose(found.of(f"layers.1.{role}").moments, x.square().mean(0), rtol=0.02, atol=1e-7)
    assert set(found.roles) == {t.role for t in card.tensors if len(t.shape) > 1}


@pytest.mark.parametrize(
    ("role", "least"),
    [*((f"layers.{role}", 0.6) for role in ("0.q", "0.o", "1.up", "1.down")), ("embed", 0.6), ("layers.1.v", 0.25)],
)
def test_a_small_change_of_a_weight_costs_about_what_is_expected(role, least, tmp_path):
    """A value is read by many positions, whose changes add up in a model that looks at all of them alike."""
    tiny_checkpoint(tmp_path / "m", "llama", tie_word_embeddings=True)
    card = open_card(tmp_path / "m")
    windows = ids(16, 64, card.decoder.vocabulary)
    found = gather(card, windows).of(role)
    with Reader(card) as reader:
        weight = Network(card, reader, 8).weight(role).numpy().copy()
    exact = logits_of(card, windows).log_softmax(-1)
    ratios = []
    for seed in range(4):
        change = np.random.default_rng(seed).normal(0, 0.02 * weight.std(), weight.shape).astype(np.float32)
        other = logits_of(card, windows, lambda name, c=change: weight + c if name == role else None).log_softmax(-1)
        measured = float((exact.exp() * (exact - other)).sum(-1).double().mean())
        ratios.append(found.divergence(change) / measured)
    assert least < np.mean(ratios) < 1.6, ratios


def test_squares_of_a_tied_weight_come_from_a_sample_of_its_rows():
    """Its rows are sampled by what they matter as a head and as an embedding; inputs that are rounded meet the head."""
    rng = np.random.default_rng(0)
    shares, looked_up = (np.float32(each / each.sum()) for each in rng.exponential(size=(2, 4000)) ** 3)
    weights = (rng.normal(size=(4000, 8)) * (0.1 + shares[:, None] * 4000)).astype(np.float32)
    hessian = np.eye(8, dtype=np.float32)
    found = Sensitivity(hessian, shares, np.ones(8, np.float32), (hessian, looked_up))
    rows = found.sample(1000)
    exact = shares.astype(np.float64) @ np.square(weights, dtype=np.float64)
    np.testing.assert_allclose(found.squares(weights[rows], rows), exact, rtol=0.15)
    assert (np.square(weights[rows]).mean(axis=0) < 0.8 * exact).all()


def test_statistics_are_kept(tmp_path):
    tiny_checkpoint(tmp_path / "m", "llama")
    card = open_card(tmp_path / "m")
    windows = ids(2, 64, card.decoder.vocabulary)
    gather(card, windows)
    heard = []
    gather(card, windows, lambda *said: heard.append(said))
    assert not heard
    gather(card, windows.flip(0), lambda *said: heard.append(said))
    assert heard


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux lists what a process maps")
def test_states_of_all_layers_are_not_held_in_memory(tmp_path):
    """Pages of mapped files count in the peak of a process: 4 bytes for each layer, token and dimension."""
    tiny_checkpoint(tmp_path / "m", "llama")
    card, mapped, entering = open_card(tmp_path / "m"), [], {}
    folder = str(tmp_path / "cache" / "statistics")

    def look(label, done, total):
        mapped.extend(line for line in Path("/proc/self/maps").read_text().splitlines() if folder in line)
        entering[label] = {path.name: path.stat().st_size for path in Path(folder).rglob("[0-9]*.npy")}

    windows = ids(3, 64, card.decoder.vocabulary)
    gather(card, windows, look)
    assert not mapped
    assert len(entering["head"]) == len(card.decoder.layers)
    assert all(size >= windows.numel() * card.decoder.hidden * 4 for size in entering["head"].values())
    assert list(entering["layer 0, backwards"]) == ["0.npy"], "files of states that were read are removed"


def test_too_few_tokens_and_models_that_compute_no_numbers_are_refused(tmp_path):
    model = tiny_checkpoint(tmp_path / "m", "llama")
    card = open_card(tmp_path / "m")
    with pytest.raises(UsageError, match="too few"):
        gather(card, ids(1, 64, card.decoder.vocabulary))
    model.model.layers[1].mlp.down_proj.weight.data[:] = 3e38
    model.save_pretrained(tmp_path / "m")
    with pytest.raises(BadFile, match="NaN or Inf"):
        gather(open_card(tmp_path / "m"), ids(3, 64, card.decoder.vocabulary))
    assert not list((tmp_path / "cache" / "statistics").iterdir())
