"""A whole token as one program against the decoder of smaller ops, for each architecture."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
from tiny_decoders import KINDS, PlainParts, checkpoint, roles, shape

from rung import formats
from rung.engine.cache import Cache
from rung.kernels.cpu import activations, linear
from rung.kernels.cpu.packing import Packed, pack
from rung.kernels.cpu.unit import panel_unit_bytes
from rung.ops.attention.ref import RUNG as REF_ATTENTION
from rung.ops.decode_step.network import Network
from rung.ops.decode_step.numba_step import RUNG as STEP
from rung.ops.decode_step.ref import RUNG as REF


class PackedLinear:
    """A packed weight, multiplied one row of activations at a time."""

    def __init__(self, weight, format):
        self.state: Packed = pack(formats.encode(weight.numpy(), formats.get(format)))

    def __call__(self, x):
        state, layout = self.state, self.state.layout
        units = state.shape[1] // 32
        out = torch.zeros(x.shape[0], state.shape[0])
        panel = np.zeros(units * panel_unit_bytes(1, layout.parts) + 64, np.uint8)
        for row, y in zip(x.contiguous(), out, strict=True):
            place = panel.ctypes.data
            activations.quantise.call(row.data_ptr(), 0, 1, place, 1, layout.parts, layout.offset, 0, units)
            blocks, size = state.shape[1] // layout.block, layout.block // 32 * panel_unit_bytes(1, layout.parts)
            head = (state.pointer, state.table_pointer, place, y.data_ptr(), 0, 1, state.shape[0], 0, state.groups)
            linear.multiply(layout.name, 1).call(
                *head, state.group_bytes, 0, blocks, layout.row_header, layout.block_bytes, size, 0
            )
        return out


class PackedParts(PlainParts):
    def __init__(self, weights, format):
        super().__init__(weights, REF_ATTENTION.apply)
        self.format = format

    def linear(self, role):
        weight = self.weights.get(role, self.weights["embed"]) if role == "head" else self.weights[role]
        return PackedLinear(weight, self.format)


IDS = torch.randint(0, 128, (21,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("threads", "cache_dtype"), [(1, "f32"), (2, "f16")])
def test_logits_equal_those_of_the_smaller_ops(kind, threads, cache_dtype):
    model = checkpoint(kind)
    described = shape(model)
    network = Network(described, PackedParts(roles(model), "q8_0"), 32)
    caches = [Cache(described, 32, cache_dtype, network.devices) for _ in range(2)]
    states = [rung.prepare(network, cache, threads=threads) for rung, cache in zip((REF, STEP), caches, strict=True)]
    for position, token in enumerate(IDS):
        wanted, found = (rung.apply(state, token, position) for rung, state in zip((REF, STEP), states, strict=True))
        assert (found - wanted).abs().max() < 0.1 * wanted.std(), f"position {position}"
    for wanted, found in zip(caches[0].keys + caches[0].values, caches[1].keys + caches[1].values, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.1)
