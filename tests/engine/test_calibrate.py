"""``rung calibrate``: rates of real decoders over random weights, kept for the plans of this device and no other."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from tests.planning.cards import cpu, gemma_2b

from rung import formats
from rung.core.types import Device
from rung.engine.calibration import importance, models, transformers
from rung.hardware import detect, probe_cache
from rung.models.card import Tensor
from rung.planning.memory import uncertainty
from rung.planning.request import Request
from rung.planning.solve import solve
from rung.planning.speed import Group, step_of

TINY = models.Size(128, 256, 2, head_dim=64, kv_heads=2, context=64)


@pytest.mark.parametrize("name", importance.FORMATS)
def test_random_weights_have_the_shape_and_the_bytes_of_a_file(name):
    card = models.card(name, replace(TINY, hidden=256, wide=512, layers=1, kv_heads=4))
    reader = models.Random(card)
    for role in ("embed", "layers.0.down"):
        tensor = card.tensor(role)
        read = reader.read(tensor)
        assert read.shape == tensor.shape
        assert read.nbytes == formats.get(name).bytes(tensor.shape) == tensor.bytes
        assert formats.decode(read).std() == pytest.approx(tensor.shape[1] ** -0.5, rel=0.2)
    norm = reader.read(Tensor("norm", "norm", (256,), "f32", 0, 0, 1024))
    assert norm.shape == (1, 256)


def test_rates_are_measured_for_what_the_plan_runs(monkeypatch):
    """On this machine, with small models: every rate is there, above zero, under the rungs that the plan takes."""
    larger = replace(TINY, hidden=256, wide=512)
    for name, value in (("_NARROW", TINY), ("_WEIGHTS", larger), ("CHUNK", 17), ("_TOKENS", 2)):
        monkeypatch.setattr(importance, name, value)
    monkeypatch.setattr(importance, "_READ_BYTES", 0)
    monkeypatch.setattr(importance, "_SECONDS", 0.0)
    caches = {name: replace(TINY, group=size.group) for name, size in importance._CACHES.items()}
    monkeypatch.setattr(importance, "_CACHES", caches)
    monkeypatch.setattr(importance, "_DEPTH", 32)
    few = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
    for name, value in (("_NARROW", few), ("_WIDE", few), ("_LAYERS", 1), ("_TOKENS", 2), ("CHUNK", 17)):
        monkeypatch.setattr(transformers, name, value)
    device = detect.devices()[0]
    heard = []
    found = importance.calibrate(device, 1, heard.append, ("q8_0",))
    assert [*dict.fromkeys(heard)] == ["layers", "q8_0", "context", "transformers"]
    (rung,) = {name.rpartition(" q8_0")[0] for name in found if name.endswith("q8_0")}
    steps = {f"layer {step_of([Group('', rung, False, 0, 0)])}"}
    named = {f"cache {size} {group}" for size in (64, 128) for group in (1, 2, 4, 8)}
    others = {"values many", "attention many", "spread", f"{rung} q8_0", f"{rung} q8_0 many"}
    networks = {f"{what} transformers" for what in ("layer", "expert", "values")}
    assert found.keys() == named | others | steps | networks
    assert all(rate > 0 for rate in found.values())


def test_what_lies_between_linears_is_told_from_them_and_from_attention():
    """Seconds made of known rates give these back, whatever the shapes that they are taken from."""
    truth = {"values": 2e-9, "attention": 7e10, "q8_0": 3e11, "q4_0": 4e11, "layer": 6e-6, "row": 2e10, "cache": 3e10}
    device, seconds = cpu(), {"narrow": 24 * truth["layer"]}
    chunk = {}
    for name in ("q4_0", "q8_0"):
        size = importance.weights_of(name)
        read = chunk[name] = models.reading(name, size, device, 1)
        products = seconds[f"{name} products"] = read.multiplied / truth[name]
        seconds["read"] = products + read.attended / truth["attention"] + read.values * truth["values"]
        seconds[name] = read.weights_bytes / truth["row"] + size.layers * truth["layer"]
    for name, size in importance._CACHES.items():
        read = 4 * size.layers * size.kv_heads * size.head_dim * importance._DEPTH
        seconds |= {f"near {name}": 1e-3, f"deep {name}": 1e-3 + read / truth["cache"]}
    size = importance._CACHES["64 1"]
    deeper = 4 * importance.CHUNK * importance._DEPTH * size.layers * size.kv_heads * size.head_dim
    seconds |= {"near many": 0.1, "deep many": 0.1 + deeper / truth["attention"]}
    found = importance.rates_of(seconds, device, 1, ("q8_0", "q4_0"))
    assert found["values many"] == pytest.approx(1 / truth["values"])
    assert found["attention many"] == pytest.approx(truth["attention"])
    for name in ("q8_0", "q4_0"):
        assert found[f"{chunk[name].rung} many"] == pytest.approx(truth[name])
        assert found[chunk[name].rung] == pytest.approx(truth["row"])


def test_what_networks_of_transformers_take_is_told_from_their_linears():
    """Seconds made of known rates give these back."""
    layer, expert, values, many, attention = 6e-4, 1.3e-4, 3e8, 8e11, 1e11
    hidden, wide, layers = (
        transformers._WIDE[f"{name}"] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")
    )
    read = 512 * layers * (hidden + wide) / values
    read += 512 * 2 * layers * (4 * hidden**2 + 3 * hidden * wide) / many + 2 * 512**2 * hidden * layers / attention
    seconds = {"dense": 12 * layer, "mixture": 12 * (layer + 2 * expert), "borrowed": read}
    found = transformers.rates(seconds, many, attention)
    assert found["layer transformers"] == pytest.approx(layer)
    assert found["expert transformers"] == pytest.approx(expert)
    assert found["values transformers"] == pytest.approx(values)
    noisy = transformers.rates({"dense": 1e-2, "mixture": 9e-3, "borrowed": 1e-6}, many, attention)
    assert all(rate > 0 for rate in noisy.values())


@pytest.mark.parametrize("name", importance.FORMATS)
def test_a_format_is_measured_with_more_than_caches_hold(name):
    card = models.card(name, importance.weights_of(name))
    assert 192e6 <= sum(tensor.bytes for tensor in card.tensors) <= 256e6


def test_what_others_disturbed_is_measured_again(monkeypatch):
    """The first measurement that nothing was taken from counts; else the one that least was taken from."""
    for taken, expected in (((1, 0.9, 0, 0), 3), ((1, 0.5, 0.9, 1), 2)):
        total, clock = itertools.accumulate(x for share in taken for x in (0, share)), itertools.count()
        monkeypatch.setattr(importance.planning, "stolen", total.__next__)
        monkeypatch.setattr(importance.time, "perf_counter", clock.__next__)
        turns = itertools.count(1)
        assert importance.undisturbed(turns.__next__) == expected


def test_what_was_measured_is_remembered_for_this_device(monkeypatch, tmp_path):
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    device = cpu()
    assert probe_cache.write_rates(device, {"layer": 1e-5}) == ""
    assert dict(probe_cache.recall(device).rates) == {"layer": 1e-5}
    assert not probe_cache.recall(replace(device, name="another")).rates
    for file in (tmp_path / "proofs").glob("*.json"):
        data = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**data, "value": {"layer": "fast"}}), encoding="utf-8")
    assert not probe_cache.recall(device).rates


def test_plans_use_the_rates():
    """A slower measured kernel makes a slower prediction, and a surer one."""
    plain: Device = cpu()
    known = replace(plain, rates=probe_cache.FrozenDict({"layer numba.step": 1e-5, "numba.row q8_0": 5e9}))
    rates = [solve(gemma_2b("q8_0", "gguf"), (device,), Request()).decode_rate for device in (plain, known)]
    weights = solve(gemma_2b("q8_0", "gguf"), (known,), Request()).placements[0].memory.weights
    assert rates[1] == pytest.approx(5e9 / weights, rel=0.1)
    assert rates[1] < rates[0]
    assert uncertainty(known) < uncertainty(plain)
    assert uncertainty(replace(known, rates=known.rates | {"spread": 0.3})) == 0.3
