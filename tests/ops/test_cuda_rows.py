"""The rungs of CUDA C under linear's contract: their kernels are built for the processor. And where they are not
taken."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rung import formats
from rung.core.types import StepClass
from rung.core.value import FrozenDict
from rung.hardware import catalog
from rung.kernels.cuda import fibers
from rung.kernels.gpu import stored
from rung.ops.linear import LADDER, self_check
from rung.ops.proof import on

from .conformance import case, weight, wrong

STORED = ["nf4:64", "nf4:64:nested", "fp4:128", "int8", "llm_int8"]
PACKED = ["q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k", "q2_k", "iq4_nl", "u4:64"]


def rung_of(name):
    """The rung that takes a format."""
    return next(rung for rung in LADDER.rungs if rung.name.startswith("cuda.") and name.split(":")[0] in rung.formats)


@pytest.mark.skipif(not fibers.compiler(), reason="no C++ compiler is here")
@pytest.mark.parametrize("name", [*STORED, *PACKED])
def test_products_of_few_and_many_rows(name, monkeypatch):
    """Up to 16 rows by a kernel, more by slabs, of which the last is shorter; the weight comes back bit for bit."""
    monkeypatch.setattr(stored, "SLAB", 4 * 512 * 8)
    encoded, rung = weight(formats.get(name), 19, 512), rung_of(name)
    state = rung.load().prepare(encoded, dtype="f32", threads=1, **on(rung, "cpu"))
    for count in (1, 3, 16, 17):
        x = torch.randn(count, 512, generator=torch.Generator().manual_seed(count))
        got = rung.load().apply(state, x)
        assert got.dtype == x.dtype
        assert not wrong(rung.name, name, "f32", got, x, torch.from_numpy(formats.decode(encoded))), count
    assert torch.equal(rung.load().apply(state, x[:2].double()), rung.load().apply(state, x[:2]).double())
    back = rung.load().restore(state)
    assert (back.format, back.shape) == (encoded.format, encoded.shape)
    assert all(np.array_equal(back.parts[part], encoded.parts[part]) for part in encoded.parts)


@pytest.mark.skipif(not fibers.compiler(), reason="no C++ compiler is here")
@pytest.mark.parametrize("name", ["nf4:64", "q4_k"])
def test_the_self_check_takes_it_and_finds_a_wrong_scale(name, monkeypatch):
    from rung.kernels.gpu import cuda_products

    example = case("linear", formats.get(name), (1, 64, 512))
    assert not self_check.check(rung_of(name), example, "cpu")
    plain = cuda_products.multiply
    monkeypatch.setattr(cuda_products, "multiply", lambda weight, x: plain(weight, x) * 1.1)
    assert self_check.check(rung_of(name), example, "cpu")


def having(device, version):
    """A card with a release of NVRTC beside torch."""
    return replace(device, real=True, software=FrozenDict({**device.software, "nvrtc": version}))


@pytest.mark.parametrize("name", ["nf4:64", "q4_0"])
def test_refusals_say_why(name):
    few, rung = case("linear", formats.get(name), (1, 64, 512)), rung_of(name)
    card, pascal = catalog.device("3090"), catalog.device("p2200")
    bare = replace(card, real=True, software=FrozenDict({"torch": "2.11"}))
    assert "not known to be there" in rung.verdict(few, bare).reason
    assert rung.verdict(few, bare).step is StepClass.UNAVAILABLE
    assert rung.verdict(few, having(card, "13"))
    assert rung.verdict(few, having(pascal, "12"))
    assert "7.5" in rung.verdict(few, having(pascal, "13")).reason
    odd = case("linear", formats.get(name), (1, 8, 48))
    assert "rows of 48" in rung.verdict(odd, having(card, "13")).reason


def test_columns_in_an_order_of_their_own_are_refused():
    example = case("linear", formats.get("u4:64:ordered"), (1, 64, 512))
    assert not rung_of("u4").verdict(example, having(catalog.device("3090"), "13"))
