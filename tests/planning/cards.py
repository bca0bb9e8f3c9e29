"""Model cards and devices of known shape, without a file."""

from __future__ import annotations

import math

from rung import formats
from rung.core.types import Capability, Device, Level, Proof
from rung.core.value import FrozenDict
from rung.models.card import Decoder, Layer, ModelCard, Rope, Tensor


def gemma_2b(format: str = "bf16", kind: str = "folder", layers: int = 18) -> ModelCard:
    """The shape of Gemma 2B: 18 layers, 8 heads of 256, one key head, feed-forward 16384, tied head."""
    hidden, wide, vocabulary = 2048, 16384, 256_000
    rope = Rope(256, False, tuple(1e4 ** (-i / 128) for i in range(128)))
    decoder = Decoder(
        "gemma", (Layer(None, 0),) * layers, hidden, 8, 1, 256, wide, vocabulary, 8192, 1e-6, 1.0,
        "gelu_tanh", 1 / 16, (rope,), embedding_scale=math.sqrt(hidden), tied_head=True,
    )  # fmt: skip
    shapes = {"q": (2048, hidden), "k": (256, hidden), "v": (256, hidden), "o": (hidden, 2048)}
    shapes |= {"gate": (wide, hidden), "up": (wide, hidden), "down": (hidden, wide)}
    tensors = [("embed", (vocabulary, hidden), format)]
    for layer in range(layers):
        tensors += [(f"layers.{layer}.{role}", shape, format) for role, shape in shapes.items()]
        tensors += [(f"layers.{layer}.{role}", (hidden,), "f32") for role in ("attn_norm", "mlp_norm")]
    tensors.append(("norm", (hidden,), "f32"))
    return ModelCard(
        "gemma-2b", kind, "gemma-2b", ("gemma-2b",), decoder,
        tuple(Tensor(r, r, s, f, 0, 0, formats.get(f).bytes(s if len(s) > 1 else (1, *s))) for r, s, f in tensors),
        "gguf", None, (1,), 2, True,
    )  # fmt: skip


def cpu(memory_gb: float = 22, id: str = "cpu", vnni: Level = Level.NATIVE) -> Device:
    """Two cores with AVX-512 VNNI at 40 GB/s, everything proved."""
    names = {"isa.kernels": vnni, "matmul.f32": Level.NATIVE}
    return Device(
        id, "cpu", "two cores", "x86_64", int(memory_gb * 2**30), int(memory_gb * 2**30), 40e9,
        FrozenDict({"f32": 1.5e11, "int8": 6e11}),
        FrozenDict({n: Capability(n, level, Proof.PROBE) for n, level in names.items()}),
        FrozenDict({"torch": "2.13.0", "numba": "0.68.1"}), FrozenDict({"cores": 2}),
    )  # fmt: skip


def p2200() -> Device:
    """A Quadro P2200: 5 GB, compute capability 6.1, no fast f16 and no bf16."""
    names = {"matmul.f32": Level.NATIVE, "matmul.f16": Level.EMULATED, "matmul.bf16": Level.ABSENT}
    return Device(
        "cuda:0", "cuda", "Quadro P2200", "sm_61", 5 * 2**30, 5059 * 2**20, 200e9, FrozenDict({"f32": 3.8e12}),
        FrozenDict({n: Capability(n, level, Proof.PROBE) for n, level in names.items()}),
        FrozenDict({"torch": "2.6.0+cu124"}),
    )  # fmt: skip
