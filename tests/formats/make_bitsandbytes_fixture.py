"""Writes ``bitsandbytes.npz``: what bitsandbytes makes of a few tensors. Needs torch and bitsandbytes; tests do not.

    python tests/formats/make_bitsandbytes_fixture.py

Tensors are flattened first, because the CPU kernels of bitsandbytes 0.50 take the wrong scales when a row is not a
multiple of the block; its other back ends flatten too.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

# kind, block, nested, weights: an odd number of them, a short last block, more and less than 256 scales.
CASES = (
    ("nf4", 64, False, 643),
    ("fp4", 64, False, 643),
    ("nf4", 64, True, 19203),
    ("fp4", 128, True, 1001),
    ("nf4", 256, False, 1001),
    ("fp4", 512, False, 1536),
    ("nf4", 1024, True, 5000),
    ("fp4", 2048, False, 5000),
    ("nf4", 4096, False, 9001),
)
FIXTURE = Path(__file__).with_name("bitsandbytes.npz")


def name_of(kind: str, block: int, nested: bool) -> str:
    """The printed name of the format."""
    return f"{kind}:{block}" + (":nested" if nested else "")


def weights(count: int) -> npt.NDArray[np.float32]:
    """The same numbers everywhere, float32 [count]: many small ones and a few large, some blocks larger than others."""
    mixed = (np.arange(count, dtype=np.uint64) * 2654435761 + 12345) % 2**32
    uniform = (mixed >> 8).astype(np.float32) / np.float32(2**23) - np.float32(1)
    growth = np.float32(1) + (np.arange(count) // 512 % 5).astype(np.float32)
    return uniform * uniform * uniform * growth * np.float32(0.03)


def digest(array: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """The SHA-256 of an array's bytes, uint8 [32]."""
    return np.frombuffer(hashlib.sha256(array.tobytes()).digest(), np.uint8)


def main() -> None:
    """Writes the fixture."""
    import torch
    from bitsandbytes import functional

    kept: dict[str, npt.NDArray[np.generic]] = {}
    for kind, block, nested, count in CASES:
        tensor = torch.from_numpy(weights(count))
        data, state = functional.quantize_4bit(tensor, blocksize=block, quant_type=kind, compress_statistics=nested)
        decoded = functional.dequantize_4bit(data, state).numpy()
        case = name_of(kind, block, nested)
        kept[f"{case} absmax"] = state.absmax.numpy()
        kept[f"{case} decoded digest"] = digest(decoded)
        kept[f"{case} data digest"] = digest(data.numpy())
        if nested:
            kept[f"{case} nested_absmax"] = state.state2.absmax.numpy()
            kept[f"{case} nested_offset"] = state.offset.reshape(1).numpy()
        if count == CASES[0][3]:
            kept[f"{case} data"] = data.numpy().reshape(-1)
            kept[f"{case} decoded"] = decoded
    np.savez_compressed(FIXTURE, **kept)
    print(f"{FIXTURE}: {FIXTURE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
