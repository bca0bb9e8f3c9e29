"""The rung of CUDA C under linear's contract: its kernels are built for the processor. And where it is not taken."""

from dataclasses import replace

import pytest
import torch

from rung import formats
from rung.core.types import StepClass
from rung.core.value import FrozenDict
from rung.hardware import catalog
from rung.kernels.cuda import fibers
from rung.kernels.gpu import stored
from rung.ops.linear import LADDER, self_check

from .conformance import case, weight, wrong

RUNG = LADDER.rung("cuda.rows")


@pytest.mark.skipif(not fibers.compiler(), reason="no C++ compiler is here")
@pytest.mark.parametrize("name", ["nf4:64", "nf4:64:nested", "fp4:128", "int8", "llm_int8"])
def test_products_of_few_and_many_rows(name, monkeypatch):
    """Up to 16 rows by a kernel, more by slabs, of which the last is shorter; the weight comes back bit for bit."""
    monkeypatch.setattr(stored, "SLAB", 4 * 512 * 8)
    encoded = weight(formats.get(name), 19, 512)
    state = RUNG.load().prepare(encoded, dtype="f32", threads=1)
    for count in (1, 3, 16, 17):
        x = torch.randn(count, 512, generator=torch.Generator().manual_seed(count))
        got = RUNG.load().apply(state, x)
        assert got.dtype == x.dtype
        assert not wrong("cuda.rows", name, "f32", got, x, torch.from_numpy(formats.decode(encoded))), count
    assert torch.equal(RUNG.load().apply(state, x[:2].double()), RUNG.load().apply(state, x[:2]).double())
    assert RUNG.load().restore(state) is encoded


@pytest.mark.skipif(not fibers.compiler(), reason="no C++ compiler is here")
def test_the_self_check_takes_it_and_finds_a_wrong_scale(monkeypatch):
    from rung.kernels.gpu import cuda_products

    given = case("linear", formats.get("nf4:64"), (1, 64, 512))
    assert not self_check.check(RUNG, given, "cpu")
    plain = cuda_products.multiply
    monkeypatch.setattr(cuda_products, "multiply", lambda weight, x: plain(weight, x) * 1.01)
    assert self_check.check(RUNG, given, "cpu")


def test_refusals_say_why():
    few = case("linear", formats.get("nf4:64"), (1, 64, 512))
    card, pascal = catalog.device("3090"), catalog.device("p2200")
    assert RUNG.verdict(few, card).step is not StepClass.UNAVAILABLE  # a card of the catalog lacks no package
    assert "a card that is here" in RUNG.verdict(few, card).reason
    assert "not known to be there" in RUNG.verdict(few, replace(card, real=True)).reason

    def having(device, version):
        return replace(device, software=FrozenDict({**device.software, "nvrtc": version}))

    assert RUNG.verdict(few, having(card, "13"))
    assert RUNG.verdict(few, having(pascal, "12"))
    assert "7.5" in RUNG.verdict(few, having(pascal, "13")).reason
    assert "rows of 96" in RUNG.verdict(case("linear", formats.get("nf4:64"), (1, 8, 96)), having(card, "13")).reason
