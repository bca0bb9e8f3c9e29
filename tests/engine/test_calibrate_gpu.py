"""``rung calibrate`` of GPUs: measured through torch in the rungs of a run, and told apart into rates.

There is no GPU here: what measures runs on the CPU as torch's device, and on a simulated card. No test looks at a time.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.planning.cards import gemma_2b, p2200

import rung
from rung import formats
from rung.core.value import FrozenDict
from rung.engine.calibration import gpu, importance, models, transformers
from rung.hardware import detect, probe_cache
from rung.planning.memory import uncertainty
from rung.planning.request import Request
from rung.planning.solve import solve
from rung.run.binding import Attention, Linear

HEADS = {f"cache {size} {group}" for size in (64, 128) for group in (1, 2, 4, 8)}
OTHERS = {"layer gpu", "values many", "attention many"}


@pytest.fixture
def small(monkeypatch):
    """Next to nothing of everything that is measured."""
    size = models.Size
    sizes = {"_NARROW": size(256, 256, 2, head_dim=64), "_WIDE": size(256, 512, 1, head_dim=64, kv_heads=2, group=2)}
    sizes |= {"_LARGE": ((512, 256), (256, 512)), "_DEPTH": 32, "_VALUES": 256, "_LAYERS": 2, "_QUEUED": 3}
    for name, value in (sizes | {"_TURNS": 1, "_SECONDS": 0.0, "CHUNK": 17}).items():
        monkeypatch.setattr(gpu, name, value)
    few = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
    for name, value in (("_NARROW", few), ("_WIDE", few), ("_LAYERS", 1), ("_TOKENS", 2), ("CHUNK", 17)):
        monkeypatch.setattr(transformers, name, value)


def named(*names: str, by: str = "torch.decode") -> set[str]:
    """The rates of formats by the rung that takes them; floats have torch's own product."""
    rungs = {f"{by if name != 'f32' else 'torch.decode'} {formats.get(name).name}" for name in names}
    return {form.format(rung) for rung in rungs for form in ("{}", "{} many", "launch {}")}


def test_the_rungs_of_a_run_are_measured_where_torch_computes(small):
    """Without numba the CPU has the rungs that a GPU has; each rate is there and above zero."""
    here = detect.devices()[0]
    device = replace(here, software=FrozenDict({k: v for k, v in here.software.items() if k != "numba"}))
    heard = []
    one = gpu.Round(device, 1, heard.append, ("q8_0", "nf4"), False, lambda measure: measure())
    assert one.torch_device == torch.device("cpu")
    seconds = one.seconds()
    assert [*dict.fromkeys(heard)] == ["layers", "q8_0", "nf4", "f32", "context"]
    ran = one.binder.journal.report(FrozenDict(), FrozenDict()).rungs
    assert (ran["linear q8_0"], ran["linear nf4:64"], ran["attention f16"]) == ("torch.decode",) * 2 + ("torch.sdpa",)
    found = gpu.rates(seconds, device, 1, ("q8_0", "nf4"))
    assert found.keys() == named("q8_0", "nf4", "f32") | HEADS | OTHERS
    assert all(rate > 0 for rate in found.values())


@pytest.mark.slow
def test_a_card_is_measured_on_the_card(small, monkeypatch):
    """All of it, with networks that transformers builds: products and attention get what lies in the card's memory."""
    places = set()
    for bound in (Linear, Attention):
        plain = bound.__call__

        def call(self, *arguments, plain=plain, **options):
            places.update((type(self).__name__, tensor.device.type) for tensor in arguments)
            return plain(self, *arguments, **options)

        monkeypatch.setattr(bound, "__call__", call)
    with rung.simulate("RTX 2080 Ti") as card:
        found = importance.calibrate(card, 1, names=("q4_0",), rounds=1)
        assert torch.cuda.max_memory_allocated() >= 2 * 512 * 256 * 4  # two matrices in f32
    assert places == {("Linear", "cuda"), ("Attention", "cuda")}
    networks = {f"{what} transformers" for what in ("layer", "expert", "values")}
    assert found.keys() == named("q8_0", "q4_0", "f32", by="cuda.rows") | HEADS | OTHERS | networks | {"spread"}
    assert all(rate > 0 for rate in found.values())


def test_what_a_queue_of_tiny_products_takes_is_shared_among_them(small):
    one = gpu.Round(detect.devices()[0], 1, lambda text: None, (), False, lambda measure: 6.0)
    assert one.product_rates("q8_0") == {"q8_0 tiny": 2.0, "q8_0": 6.0, "q8_0 many": 6.0}


def test_the_clock_stops_when_the_device_has_computed_everything(monkeypatch):
    """A launch that returns at once, and a second until it is computed; the first call does not count."""
    one, clock = object.__new__(gpu.Round), [0.0]
    one.torch_device, one.undisturbed = torch.device("cpu"), lambda measure: measure()
    launches = iter([50.0, *[0.25] * 99])

    def wait(device: torch.device) -> None:
        clock[0] += 1.0

    def work() -> None:
        clock[0] += next(launches)

    monkeypatch.setattr(gpu, "synchronize", wait)
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: clock[0])
    assert one.median_seconds(work) == 1.25


def test_each_kind_of_device_is_waited_for_in_its_own_way(monkeypatch):
    """The device itself, which need not be the current one; Apple's takes no name."""
    waited = []
    for kind in ("cuda", "xpu", "mps"):
        monkeypatch.setattr(
            getattr(torch, kind), "synchronize", lambda *arguments, kind=kind: waited.append((kind, *arguments))
        )
    for name in ("cpu", "cuda:1", "xpu:0", "mps"):
        gpu.synchronize(torch.device(name))
    assert waited == [("cuda", torch.device("cuda:1")), ("xpu", torch.device("xpu:0")), ("mps",)]


def test_known_rates_come_back():
    """Seconds made of known rates, in counts of their own: two products of 14336 x 4096; caches of 4096 values in 4
    layers, which 32 heads of 128 read for a prompt; a narrow decoder of 24 layers of 7 products and a head; a chunk
    of a wide one of 2 layers."""
    truth = {"launch": 2e-5, "row": 3e11, "many": 5e12, "cache": 4e11, "attention": 2e12, "layer": 1e-4, "values": 6e9}
    stored = {"q8_0": 34 / 32, "q4_0": 18 / 32, "f32": 4.0}
    weights = 2 * 14336 * 4096
    seconds = {"token": 24 * (truth["layer"] + 7 * truth["launch"]) + truth["launch"]}
    for name, each in stored.items():
        seconds |= {f"{name} tiny": truth["launch"], name: weights * each / truth["row"]}
        seconds[f"{name} many"] = 2 * 512 * weights / truth["many"]
    seconds |= dict.fromkeys(HEADS, 4 * 2 * 4096 * 3073 * 2 / truth["cache"])
    cells = 512 * 3072 + 512 * 512 / 2
    seconds["attention"] = 4 * cells * 4 * 4096 / truth["attention"]
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    seconds["chunk"] = 2 * 512 * 2 * layer / truth["many"] + 4 * 512 * 512 / 2 * 2 * 4096 / truth["attention"]
    seconds["chunk"] += 512 * 2 * (4096 + 14336) / truth["values"]
    found = gpu.rates(seconds, p2200(), 1, ("q8_0", "q4_0"))
    for name in stored:
        assert found[f"launch torch.decode {name}"] == pytest.approx(truth["launch"])
        assert found[f"torch.decode {name}"] == pytest.approx(truth["row"])
        assert found[f"torch.decode {name} many"] == pytest.approx(truth["many"])
    assert [found[name] for name in sorted(HEADS)] == pytest.approx([truth["cache"]] * 8)
    assert found["attention many"] == pytest.approx(truth["attention"])
    assert found["layer gpu"] == pytest.approx(truth["layer"])
    assert found["values many"] == pytest.approx(truth["values"])


def test_rates_of_a_card_are_remembered_for_it_and_trusted_like_a_probe(monkeypatch, tmp_path):
    """Not for its neighbor, nor under another driver; nobody has held predictions from them against a card."""
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    card = replace(p2200(), software=p2200().software | {"driver": "550.54"})
    assert probe_cache.write_rates(card, {"layer gpu": 1.0}) == ""
    known = probe_cache.recall(replace(card, free=2**30))
    assert dict(known.rates) == {"layer gpu": 1.0}
    planned = solve(gemma_2b("q8_0", "gguf"), (probe_cache.recall(card),), Request())
    assert planned.decode_rate == pytest.approx(1 / 18)  # a second for each layer
    others = (replace(card, id="cuda:1"), replace(card, software=card.software | {"driver": "560.1"}))
    assert not any(probe_cache.recall(other).rates for other in others)
    assert uncertainty(known) == 0.35
    assert uncertainty(replace(known, rates=known.rates | {"spread": 0.4})) == 0.4
