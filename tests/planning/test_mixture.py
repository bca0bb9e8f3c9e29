"""llama.cpp's mixtures: sizes that its own README publishes, rows that blocks do not divide, names."""

from __future__ import annotations

import pytest

from rung import formats
from rung.core.errors import UnknownFormat
from rung.planning.gguf_mixtures import LLAMA_CPP, Mixture, TensorPosition, storage

#: Bits per weight of Llama 3.1 8B: llama.cpp, tools/quantize/README.md.
PUBLISHED = {
    "iq1_s": 2.0042, "iq1_m": 2.1460, "iq2_xxs": 2.3824, "iq2_xs": 2.5882, "iq2_s": 2.7403, "iq2_m": 2.9294,
    "iq3_xxs": 3.2548, "iq3_xs": 3.4977, "iq3_s": 3.6606, "iq3_m": 3.7628, "iq4_xs": 4.4597, "iq4_nl": 4.6818,
    "q2_k_s": 2.9697, "q2_k": 3.1593, "q3_k_s": 3.6429, "q3_k_m": 3.9960, "q3_k_l": 4.2979, "q4_k_s": 4.6672,
    "q4_k_m": 4.8944, "q5_k_s": 5.5704, "q5_k_m": 5.7036,
}  # fmt: skip
HIDDEN, WIDE, LAYERS, VOCABULARY = 4096, 14336, 32, 128256
ROLES = {
    "q": (HIDDEN, HIDDEN), "k": (1024, HIDDEN), "v": (1024, HIDDEN), "o": (HIDDEN, HIDDEN),
    "gate": (WIDE, HIDDEN), "up": (WIDE, HIDDEN), "down": (HIDDEN, WIDE),
}  # fmt: skip


def bits_per_weight(mixture):
    norms = (2 * LAYERS + 1) * HIDDEN
    bits, weights = 32 * norms, norms
    tensors = [("embed", (VOCABULARY, HIDDEN), 0), ("head", (VOCABULARY, HIDDEN), 0)]
    tensors += [(role, shape, layer) for layer in range(LAYERS) for role, shape in ROLES.items()]
    for role, shape, layer in tensors:
        chosen = mixture.format_at(TensorPosition(role, shape[1], layer, LAYERS, shared=4))
        bits += 8 * chosen.bytes(shape)
        weights += shape[0] * shape[1]
    return bits / weights


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_those_that_llama_cpp_publishes(name):
    assert bits_per_weight(Mixture(name)) == pytest.approx(PUBLISHED[name], abs=1e-4)


def test_every_mixture_names_formats_that_exist():
    for name in LLAMA_CPP:
        for role in (*ROLES, "embed", "head", "qkv", "experts_down", "router"):
            for weight in (
                TensorPosition(role, 4096),
                TensorPosition(role, 4096, experts=8),
                TensorPosition(role, 96, tied=True),
                TensorPosition(role, 40),
            ):
                assert Mixture(name).format_at(weight).divides(weight.columns)


def test_a_tied_embedding_is_stored_as_the_head():
    assert Mixture("q4_k_m").format_at(TensorPosition("embed", 2048, tied=True)).name == "q6_k"
    assert Mixture("q4_k_m").format_at(TensorPosition("embed", 2048)).name == "q4_k"


def test_names():
    assert storage("Q4_K_M") == Mixture("q4_k_m")
    assert storage("q4_k") == formats.get("q4_k")
    assert storage("nf4") == formats.get("nf4:64")
    with pytest.raises(UnknownFormat, match="Did you mean q4_k_m"):
        storage("q4_k_mm")
