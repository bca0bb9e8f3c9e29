"""Every ladder climbs everywhere: all products by all ops, formats and dtypes, and the page that says so."""

from pathlib import Path

import pytest

from rung.cli.views import fallbacks
from rung.core.types import Level
from rung.hardware import catalog
from rung.hardware.catalog import releases
from rung.ops import LADDERS

PAGE = Path(__file__).parents[2] / "docs" / "fallbacks.md"
ARCHITECTURES = list(dict.fromkeys(product.arch for product in catalog.products()))


@pytest.mark.parametrize("product", catalog.products(), ids=lambda p: p.name)
def test_a_product_can_what_its_architecture_can(product):
    """So that a walk over architectures is a walk over products."""
    device, first = (
        catalog.device(p.name) for p in (product, next(p for p in catalog.products() if p.arch == product.arch))
    )
    assert device.capabilities == first.capabilities
    assert device.software == first.software
    assert device.kind == first.kind


@pytest.mark.parametrize("key", ARCHITECTURES)
def test_every_ladder_climbs(key):
    """At least one rung, a reason for every refusal, and nothing chosen that the device lacks."""
    architecture = catalog.architectures()[key]
    device = catalog.device(next(p.name for p in catalog.products() if p.arch == key))
    # what the device has, from the rows and not from its capabilities
    has = {f"isa.{name}" for name in architecture.isa}
    has |= {"package.torch"} if releases.newest(key).image(architecture) else set()
    has |= {"isa.kernels", "package.numba"} if architecture.kind == "cpu" else set()
    has |= {"package.triton"} if _triton(architecture.kind, key) else set()
    pairs = set()
    for _, case, climb in fallbacks.climbs(device):
        pairs.add((case.op, case.format))
        where = f"{case.op} {case.format} {case.dtype} on {key}"
        assert climb.rung, where
        assert all(refusal.reason.strip() for refusal in climb.refusals), where
        assert set(climb.rung.needs) <= has, f"{where}: {climb.rung.name} needs {climb.rung.needs}"
        assert "*" in climb.rung.kinds or device.kind in climb.rung.kinds, where
        if climb.rung.name == "torch.decode" and case.op == "linear":
            assert architecture.matmul[case.dtype] in ("native", "emulated"), where
            assert device.capability(f"matmul.{case.dtype}").level is not Level.ABSENT, where
        assert climb.rung is not LADDERS[case.op].rungs[-1] or climb.refusals, where
    assert {op for op, _ in pairs} == set(LADDERS)
    assert len({format for op, format in pairs if op == "linear"}) > 25


def _triton(kind, key):
    """Return whether the newest torch for an architecture comes with Triton."""
    build = releases.newest(key)
    return kind in ("cuda", "rocm") and build is not None and bool(releases.triton(build))


def test_where_no_code_of_torch_runs_every_rung_says_so():
    device = catalog.device("p2200", "torch 2.13+cu130")
    for _, case, climb in fallbacks.climbs(device):
        assert climb.rung is None
        torch = [r.reason for r in climb.refusals if not r.rung.startswith(("numba.", "numpy.", "webgpu."))]
        assert torch, case
        assert all("none of it runs on 6.1" in reason for reason in torch)


def test_the_page_is_what_the_code_prints():
    assert PAGE.read_text(encoding="utf-8") == fallbacks.page(), "rung ladder --matrix > docs/fallbacks.md"
