"""Every rung of the embedding ladder gives the decoded values themselves."""

import pytest
import torch

from rung import formats
from rung.kernels.cuda import fibers
from rung.ops.embedding import LADDER

from .conformance import CPU, FORMATS, case, weight

TAKEN = [
    (rung, format)
    for rung in LADDER.rungs
    for format in FORMATS
    if "*" in rung.formats or format.name.split(":")[0] in rung.formats
]


@pytest.mark.parametrize(("rung", "format"), TAKEN, ids=[f"{r.name}-{f.name}" for r, f in TAKEN])
def test_rows_are_the_decoded_values(rung, format):
    columns = max(512, format.block)
    encoded = weight(format, 83, columns)
    if rung.name.startswith("cuda."):
        if not fibers.compiler():
            pytest.skip("no C++ compiler is here")
    elif not rung.verdict(case("embedding", format, (1, 83, columns)), CPU):
        pytest.skip("this processor has no AVX-512 VNNI")
    implementation = rung.load()
    state = implementation.prepare(encoded, dtype="f32", threads=2)
    ids = torch.tensor([0, 82, 17, 82, 16])
    got = implementation.look_up(state, ids)
    assert got.dtype == torch.float32
    assert torch.equal(got, torch.from_numpy(formats.decode(encoded))[ids])
    assert implementation.look_up(state, ids[:0]).shape == (0, columns)


def test_rows_that_blocks_do_not_divide_are_refused():
    rung = LADDER.rung("numba.rows")
    verdict = rung.verdict(case("embedding", formats.get("nf4"), (1, 83, 96)), CPU)
    assert "96" in verdict.reason or "isa" in verdict.reason
