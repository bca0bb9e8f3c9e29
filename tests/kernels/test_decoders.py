"""The decoders in torch, which GPUs use: bit for bit what ``rung.formats.decode`` gives, for any slice of rows."""

import pytest
import torch

from rung import formats
from rung.kernels.gpu import decoders
from rung.kernels.gpu.stored import prepare
from tests.ops.conformance import FORMATS, weight

COMMON = [format for format in FORMATS if decoders.find(format) is not None]


@pytest.mark.parametrize("format", COMMON, ids=lambda f: f.name)
def test_decoders_equal_the_codecs(format):
    encoded = weight(format, 21, max(512, format.block))
    parts = prepare(encoded, "f32", 1).on(torch.device("cpu"))
    for first, last in ((0, 21), (5, 6), (3, 20), (7, 7)):
        got = decoders.find(format)(parts, encoded, first, last)
        assert torch.equal(got, torch.from_numpy(formats.decode(encoded, slice(first, last))))


def test_threads_change_nothing():
    encoded = weight(formats.get("nf4"), 300, 512)
    assert (formats.decode(encoded, slice(7, 299), threads=3) == formats.decode(encoded, slice(7, 299))).all()
