"""Rungs of the founding cases: kernels that ask more of a card than it has, and say so as the originals do."""

from __future__ import annotations

from typing import Any

import torch

from rung.core.types import Ladder, Rung
from rung.kernels.gpu.stored import prepare
from rung.ops import LADDERS
from rung.simulation.context import current

CMMA_NEED = "cmma.f16.f32.16x16x16"


class Cmma:
    """Brush: products on 16x16x16 matrix units, which the kernel's framework looks up in the features of the device."""

    def prepare(self, encoded: Any, *, dtype: str, threads: int) -> Any:
        return prepare(encoded, dtype, threads)

    def apply(self, state: Any, x: torch.Tensor) -> torch.Tensor:
        card = current()
        assert card is not None
        if card.capability(CMMA_NEED).source != "the unit itself":
            raise RuntimeError(
                "Cmma on inputs Float(F16) and outputs Float(F32) with shape m=16, n=16, k=16 not supported."
            )
        return LADDERS["linear"].rung("ref").load().apply(state, x)

    def restore(self, state: Any) -> Any:
        return state.encoded


class Mmq:
    """llamafile: int8 products through ``dp4a``, from the code that its CUDA module was compiled for."""

    built = (500, 600, 700, 750, 800, 900)

    def prepare(self, encoded: Any, *, dtype: str, threads: int) -> Any:
        return prepare(encoded, dtype, threads)

    def apply(self, state: Any, x: torch.Tensor) -> torch.Tensor:
        major, minor = torch.cuda.get_device_capability()
        arch = max(code for code in self.built if code <= 100 * major + 10 * minor)
        if arch < 610:  # the body stands between #if __CUDA_ARCH__ >= 610 and #else
            raise RuntimeError(
                f"CUDA kernel vec_dot_q8_0_q8_1_impl has no device code compatible with CUDA arch {arch}. ggml-cuda.cu "
                f"was compiled for: {','.join(map(str, self.built))}"
            )
        return LADDERS["linear"].rung("ref").load().apply(state, x)

    def restore(self, state: Any) -> Any:
        return state.encoded


class Igemmlt:
    """bitsandbytes: a weight in llm_int8 times activations that are rounded to int8, as one product of int8."""

    def prepare(self, encoded: Any, *, dtype: str, threads: int) -> Any:
        return prepare(encoded, dtype, threads)

    def apply(self, state: Any, x: torch.Tensor) -> torch.Tensor:
        codes, scale = (torch.from_numpy(state.encoded.parts[part]).to(x.device) for part in ("data", "scale"))
        peak = x.abs().amax(dim=1, keepdim=True)
        rounded = (x * (127 / peak)).round().to(torch.int8)
        return torch._int_mm(rounded, codes.T).to(x.dtype) * (peak / 127) * (scale / 127)

    def restore(self, state: Any) -> Any:
        return state.encoded


CMMA, MMQ, IGEMMLT = Cmma(), Mmq(), Igemmlt()


def ladder(name: str, impl: str, needs: tuple[str, ...] = ()) -> Ladder:
    """That rung above the ones that rung has for GPUs."""
    top = Rung("linear", name, f"tests.simulation.rungs:{impl}", kinds=("cuda",), needs=needs)
    registered = LADDERS["linear"]
    return Ladder("linear", (top, registered.rung("torch.decode"), registered.rung("ref")))
