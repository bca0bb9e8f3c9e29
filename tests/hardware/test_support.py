"""Which software runs where, held against tables that the makers publish and that the rows were not made from."""

import pytest

from rung.hardware import catalog
from rung.hardware.catalog.support import compute_types, support

#: A card for each column of the tables below.
CARDS = {
    "Volta": "v100", "Turing": "t4", "Ampere": "a100", "Ada": "4090", "Hopper": "h100", "AMD": "mi300x",
    "Intel": "arc a770", "CPU": "sapphire rapids",
}  # fmt: skip

#: https://docs.vllm.ai/en/v0.11.2/features/quantization/ (supported hardware), the release before the rows' own.
VLLM = """
AWQ                    no  yes yes yes yes no  yes yes
GPTQ                   yes yes yes yes yes no  yes yes
Marlin (GPTQ/AWQ/FP8)  no  no  yes yes yes no  no  no
INT8 (W8A8)            no  yes yes yes yes no  no  yes
FP8 (W8A8)             no  no  no  yes yes yes no  no
bitsandbytes           yes yes yes yes yes no  no  no
DeepSpeedFP            yes yes yes yes yes no  no  no
GGUF                   yes yes yes yes yes yes no  no
"""
#: docs/quantization.md of CTranslate2, "Implicit type conversion on load".
CT2 = """
cpu-intel  int8_float32 int8_float32 int8_float32 int16        float32 float32
cpu-other  int8_float32 int8_float32 int8_float32 int8_float32 float32 float32
cpu-arm    int8_float32 int8_float32 int8_float32 int8_float32 float32 float32
8.0        int8_float32 int8_float16 int8_bfloat16 float16     float16 bfloat16
7.5        int8_float32 int8_float16 int8_float32 float16      float16 float32
7.0        int8_float32 int8_float16 int8_float32 float16      float16 float32
6.2        float32      float32      float32      float32      float32 float32
6.1        int8_float32 int8_float32 int8_float32 float32      float32 float32
6.0        float32      float32      float32      float32      float32 float32
"""
CT2_TYPES = ("int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16")
CT2_CARDS = {
    "cpu-intel": "sapphire rapids",
    "cpu-other": "ryzen 9 7950x",
    "cpu-arm": "graviton3",
    "8.0": "a100",
    "7.5": "t4",
    "7.0": "v100",
    "6.2": "jetson tx2",
    "6.1": "p2200",
    "6.0": "p100",
}


def runs(name, package, feature, software=None):
    rows = [r for r in support(catalog.device(name, software)) if r.package == package and r.feature == feature]
    return rows[0].runs if rows else None


@pytest.mark.parametrize("line", [line for line in VLLM.splitlines() if line])
def test_vllm(line):
    feature, answers = line[:23].strip(), line[23:].split()
    for (column, card), answer in zip(CARDS.items(), answers, strict=True):
        assert runs(card, "vLLM", feature) == answer, (feature, column)


@pytest.mark.parametrize("line", [line for line in CT2.splitlines() if line])
def test_ctranslate2(line):
    hardware, *resolved = line.split()
    device = catalog.device(CT2_CARDS[hardware])
    key = str(device.details.get("isa", device.arch))
    assert compute_types(device, catalog.architectures()[key]) == dict(zip(CT2_TYPES, resolved, strict=True))
    for name, to in zip(CT2_TYPES, resolved, strict=True):
        (row,) = [r for r in support(device) if r.feature == f"compute type {name}"]
        assert (row.runs == "yes") == (name == to) or "device code" in row.reason
        assert name == to or to in row.reason or "device code" in row.reason


@pytest.mark.parametrize(
    ("release", "feature", "lowest"),
    [
        # https://huggingface.co/docs/bitsandbytes/v0.48.1/installation and v0.46.0/installation, "CC Required"
        ("0.48.1", "LLM.int8()", "7.5"),
        ("0.48.1", "nf4 and fp4", "6.0"),
        ("0.48.1", "8-bit optimisers", "6.0"),
        ("0.46.0", "LLM.int8()", "7.5"),
        ("0.46.0", "nf4 and fp4", "5.0"),
    ],
)
def test_bitsandbytes(release, feature, lowest):
    cards = {"5.2": "gtx 980", "6.0": "p100", "6.1": "p2200", "7.0": "v100", "7.5": "t4", "8.9": "4090"}
    for capability, card in cards.items():
        expected = "yes" if float(capability) >= float(lowest) else "no"
        assert runs(card, "bitsandbytes", feature, f"bitsandbytes {release}") == expected, card


@pytest.mark.parametrize(
    ("name", "package", "feature", "software", "expected"),
    [
        # llamafile#434: sm_60 code whose dp4a body was compiled away
        ("p2200", "llamafile", "quantised matrix products", "llamafile 0.8.5", "no"),
        ("p2200", "llamafile", "quantised matrix products", None, "slow"),
        ("t4", "llamafile", "quantised matrix products", "llamafile 0.8.5", "yes"),
        # the README of FlashAttention: Ampere, Ada or Hopper
        ("t4", "flash-attn", "FlashAttention-2, f16 and bf16, heads up to 256", None, "no"),
        ("3090", "flash-attn", "FlashAttention-2, f16 and bf16, heads up to 256", None, "yes"),
        # pykeio/ort#589; code for 9.0a and 12.0a runs on exactly these
        ("p40", "onnxruntime-gpu", "CUDA provider", None, "no"),
        ("b200", "onnxruntime-gpu", "CUDA provider", None, "no"),
        ("5090", "onnxruntime-gpu", "CUDA provider", None, "yes"),
        ("dgx spark", "onnxruntime-gpu", "CUDA provider", None, "no"),
        ("v100", "bitsandbytes", "LLM.int8()", "bitsandbytes 0.42", "slow"),
        ("v100", "vLLM", "prebuilt wheel", None, "no"),
        ("v100", "triton", "tl.dot of f16 and bf16", None, "slow"),
        ("m1", "llama.cpp", "Metal", None, "yes"),
    ],
)
def test_reports(name, package, feature, software, expected):
    assert runs(name, package, feature, software) == expected


def test_where_the_newest_does_not_run_the_newest_that_does_is_listed():
    rows = [r for r in support(catalog.device("gtx 980")) if r.feature == "nf4 and fp4"]
    assert [(row.version, row.runs) for row in rows] == [("0.50.2", "no"), ("0.47.0", "yes")]


@pytest.mark.parametrize("product", catalog.products(), ids=lambda p: p.name)
def test_every_product_has_an_answer_with_a_reason_and_a_source(product):
    rows = support(catalog.device(product.name))
    assert len({(r.package, r.feature, r.version) for r in rows}) == len(rows)
    for row in rows:
        assert row.runs in ("yes", "no", "slow", "unknown")
        assert row.runs == "yes" or row.reason, row
        assert row.source or row.package == "torch"


def test_what_is_unknown_says_why_and_where_it_was_looked_for():
    rows = {product.arch: product.name for product in catalog.products()}
    found = {name: support(catalog.device(name)) for name in rows.values()}
    unknown = [(name, one) for name, listed in found.items() for one in listed if one.runs == "unknown"]
    assert not [(name, one.package, one.feature) for name, one in unknown if not one.source or not one.reason]
    assert len(unknown) <= 91  # of more than 2500
