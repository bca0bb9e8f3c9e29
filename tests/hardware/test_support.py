"""Which software runs where, held against tables that the makers publish and that the rows were not made from."""

import pytest

from rung.hardware import catalog
from rung.hardware.catalog.releases import features
from rung.hardware.catalog.support import architecture_of, compute_types, doubts, support
from tests.support.rows import each_row

#: A card for each column of the tables below.
CARDS = {
    "Volta": "v100", "Turing": "t4", "Ampere": "a100", "Ada": "4090", "Hopper": "h100", "AMD": "mi300x",
    "Intel": "arc a770", "CPU": "sapphire rapids",
}  # fmt: skip

#: "Supported hardware" of https://docs.vllm.ai/en/v<release>/ (quantization/supported_hardware.html, since 0.11
#: features/quantization/). The rows of the catalog were made from 0.5.3, 0.6.4, 0.6.6 and 0.15.1.
VLLM = {
    "0.5.3": """
AWQ                    no  yes yes yes yes no  no  no
GPTQ                   yes yes yes yes yes no  no  no
Marlin (GPTQ/AWQ/FP8)  no  no  yes yes yes no  no  no
FP8                    no  no  yes yes yes no  no  no
bitsandbytes           yes yes yes yes yes no  no  no
DeepSpeedFP            yes yes yes yes yes no  no  no
""",
    "0.6.4": """
AWQ                    no  yes yes yes yes no  no  yes
GPTQ                   yes yes yes yes yes no  no  no
Marlin (GPTQ/AWQ/FP8)  no  no  yes yes yes no  no  no
INT8 (W8A8)            no  yes yes yes yes no  no  yes
FP8 (W8A8)             no  no  no  yes yes yes no  no
bitsandbytes           yes yes yes yes yes no  no  no
DeepSpeedFP            yes yes yes yes yes no  no  no
GGUF                   yes yes yes yes yes no  no  no
""",
    "0.6.6": """
AWQ                    no  yes yes yes yes no  yes yes
GPTQ                   yes yes yes yes yes no  yes yes
Marlin (GPTQ/AWQ/FP8)  no  no  yes yes yes no  no  no
INT8 (W8A8)            no  yes yes yes yes no  no  yes
FP8 (W8A8)             no  no  no  yes yes yes no  no
bitsandbytes           yes yes yes yes yes no  no  no
DeepSpeedFP            yes yes yes yes yes no  no  no
GGUF                   yes yes yes yes yes no  no  no
""",
    "0.8.4 0.9.2 0.11.2 0.14.0": """
AWQ                    no  yes yes yes yes no  yes yes
GPTQ                   yes yes yes yes yes no  yes yes
Marlin (GPTQ/AWQ/FP8)  no  no  yes yes yes no  no  no
INT8 (W8A8)            no  yes yes yes yes no  no  yes
FP8 (W8A8)             no  no  no  yes yes yes no  no
bitsandbytes           yes yes yes yes yes no  no  no
DeepSpeedFP            yes yes yes yes yes no  no  no
GGUF                   yes yes yes yes yes yes no  no
""",
}
VLLM_LINES = [
    (at, line) for releases, text in VLLM.items() for at in releases.split() for line in text.split("\n")[1:-1]
]
#: docs/quantization.md of CTranslate2, "Implicit type conversion on load", the same from 3.17 to 4.8.1.
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
#: The same page of 3.5 to 3.16, which have no bfloat16 (int8, int8_float16, int16, float16).
OLD_CT2 = """
cpu-intel  int8    int8         int16   float32
cpu-other  int8    int8         int8    float32
cpu-arm    int8    int8         int8    float32
8.0        int8    int8_float16 float16 float16
7.0        int8    int8_float16 float16 float16
6.2        float32 float32      float32 float32
6.1        int8    int8         float32 float32
6.0        float32 float32      float32 float32
"""
OLD_CT2_TYPES = ("int8", "int8_float16", "int16", "float16")
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


def lines(text):
    return [line for line in text.splitlines() if line]


@pytest.mark.parametrize(("release", "line"), VLLM_LINES)
def test_vllm(release, line):
    feature, answers = line[:23].strip(), line[23:].split()
    for (column, card), answer in zip(CARDS.items(), answers, strict=True):
        found = runs(card, "vLLM", feature, f"vLLM {release}")
        # the table of 0.5.3 does not tell fp8 weights alone from whole products
        assert found == answer or (feature, column, found) == ("FP8", "Ampere", "slow"), (feature, column)


@pytest.mark.parametrize(
    ("release", "types", "line"),
    [(at, CT2_TYPES, line) for at in (None, "3.17", "4.8.1") for line in lines(CT2)]
    + [(at, OLD_CT2_TYPES, line) for at in ("3.5", "3.16.1") for line in lines(OLD_CT2)],
)
def test_ctranslate2(release, types, line):
    hardware, *resolved = line.split()
    device = catalog.device(CT2_CARDS[hardware], release and f"CTranslate2 {release}")
    assert compute_types(device, architecture_of(device)) == dict(zip(types, resolved, strict=True))
    for name, to in zip(types, resolved, strict=True):
        (row,) = [r for r in support(device) if r.feature == f"compute type {name}"]
        assert (row.runs == "yes") == (name == to) or "device code" in row.reason
        assert name == to or to in row.reason or "device code" in row.reason


@pytest.mark.parametrize(
    ("release", "feature", "lowest"),
    [
        # https://huggingface.co/docs/bitsandbytes/v0.48.1/installation and v0.46.0/installation, "CC Required"
        ("0.48.1", "LLM.int8()", "7.5"),
        ("0.48.1", "nf4 and fp4", "6.0"),
        ("0.48.1", "8-bit optimizers", "6.0"),
        ("0.46.0", "LLM.int8()", "7.5"),
        ("0.46.0", "nf4 and fp4", "5.0"),
        ("0.46.0", "8-bit optimizers", "5.0"),
        # the README of 0.35: "LLM.int8() requires Turing or Ampere GPUs", optimizers "Kepler or newer"
        ("0.35.0", "LLM.int8()", "7.5"),
        ("0.35.0", "8-bit optimizers", "3.7"),
        ("0.42.0", "8-bit optimizers", "5.0"),
    ],
)
def test_bitsandbytes(release, feature, lowest):
    cards = {"3.7": "k80", "5.2": "gtx 980", "6.0": "p100", "6.1": "p2200", "7.0": "v100", "7.5": "t4", "8.9": "4090"}
    for capability, card in cards.items():
        expected = "yes" if float(capability) >= float(lowest) else "no"
        assert runs(card, "bitsandbytes", feature, f"bitsandbytes {release}") == expected, card


@pytest.mark.parametrize(
    ("name", "package", "feature", "software", "expected"),
    [
        # llamafile#434: sm_60 code whose dp4a body was compiled away
        ("p2200", "llamafile", "quantized matrix products", "llamafile 0.8.5", "no"),
        ("p2200", "llamafile", "quantized matrix products", None, "slow"),
        ("t4", "llamafile", "quantized matrix products", "llamafile 0.8.5", "yes"),
        # the README of FlashAttention: Ampere, Ada or Hopper
        ("t4", "flash-attn", "FlashAttention-2, f16 and bf16, heads up to 256", None, "no"),
        ("3090", "flash-attn", "FlashAttention-2, f16 and bf16, heads up to 256", None, "yes"),
        # its README and setup.py: Hopper since 1.0, no Turing from 2.0 on, AMD since 2.6, Blackwell since 2.7.3
        ("t4", "flash-attn", "FlashAttention-1", "flash-attn 1.0.9", "yes"),
        ("h100", "flash-attn", "FlashAttention-1", "flash-attn 0.2.8", "no"),
        ("h100", "flash-attn", "FlashAttention-1", "flash-attn 1.0", "yes"),
        ("5090", "flash-attn", "FlashAttention-2, f16 and bf16, heads up to 256", "flash-attn 2.7.2", "no"),
        ("5090", "flash-attn", "FlashAttention-2, f16 and bf16, heads up to 256", "flash-attn 2.7.3", "yes"),
        ("mi300x", "flash-attn", "FlashAttention-2, f16 and bf16, heads up to 256", "flash-attn 2.5.9", "no"),
        ("mi300x", "flash-attn", "FlashAttention-2, f16 and bf16, heads up to 256", "flash-attn 2.6", "yes"),
        # ggml-org/llama.cpp#3501 and #11984: code for 5.2 and newer, 5.0 since February 2025
        ("gtx 750 ti", "llama.cpp", "CUDA or HIP, quantized matrix products", "llama.cpp b3000", "no"),
        ("gtx 750 ti", "llama.cpp", "CUDA or HIP, quantized matrix products", "llama.cpp b5000", "slow"),
        ("p100", "llama.cpp", "CUDA or HIP, quantized matrix products", "llama.cpp b3000", "slow"),
        ("p2200", "llama.cpp", "CUDA or HIP, quantized matrix products", "llama.cpp b3000", "yes"),
        # installation pages of vLLM: 7.0 up to 0.14, 7.5 in 0.21
        ("v100", "vLLM", "prebuilt wheel", "vLLM 0.6", "yes"),
        ("p100", "vLLM", "prebuilt wheel", "vLLM 0.6", "no"),
        ("v100", "vLLM", "prebuilt wheel", "vLLM 0.21", "no"),
        # docs/hardware_support.md of CTranslate2: 3.5 and newer, which the wheel of 4.8.5 does not hold
        ("gtx 980", "CTranslate2", "prebuilt wheel", "CTranslate2 3.24", "yes"),
        ("gtx 980", "CTranslate2", "prebuilt wheel", None, "no"),
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


@pytest.mark.parametrize(
    ("name", "software", "said"),
    [
        (
            "v100",
            "llama.cpp b1000",
            "llama.cpp b1000: the catalog does not know that release; it knows b1400 to b9000.",
        ),
        (
            "v100",
            "CTranslate2 2.0",
            "CTranslate2 2.0: the catalog does not know that release; it knows 3.5 to 4.8.5.",
        ),
        ("mi300x", "CTranslate2 4.8", "CTranslate2 4.8: the catalog knows nothing of CTranslate2 on such a device."),
        ("v100", "bitsandbytes 0.38", "for nf4 and fp4 (0.39 to 0.50.2)."),
        ("v100", "vLLM 0.16", "prebuilt wheel (0.2 to 0.14.0 and 0.21 to 0.33.0); AWQ, GPTQ, Marlin"),
        ("v100", "vLLM 0.16", "GGUF as of 0.15.1, the newest that was looked at."),
        ("v100", "llama.cpp b99999", "as of b9000, the newest that was looked at."),
    ],
)
def test_a_release_that_rows_do_not_speak_of_is_told_in_one_line(name, software, said):
    (line,) = doubts(catalog.device(name, software))
    assert said in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("name", "software"),
    [
        ("v100", None),
        ("v100", "llama.cpp b3000"),
        ("v100", "CTranslate2 3.10"),
        ("t4", "vLLM 0.6.4"),
        ("sapphire rapids", None),
    ],
)
def test_what_the_catalog_knows_raises_no_doubt(name, software):
    assert doubts(catalog.device(name, software)) == ()


def test_every_release_between_the_first_and_the_newest_has_rows_or_a_doubt():
    """No package is asked for in vain: where a release has no row, ``doubts`` says so."""
    for row in features():
        for at in (row["since"], row.get("before", "9999"), "0"):
            for card in ("v100", "mi300x", "arc a770", "m1", "sapphire rapids"):
                device = catalog.device(card, f"{row['package']} {at}")
                assert any(r.package == row["package"] for r in support(device)) or doubts(device), (row, at, card)


@each_row("product", catalog.products(), lambda p: p.name)
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
    assert len(unknown) <= 94  # of more than 2500
