"""The five messages that rung began with: of other dtypes, cards and versions, cut off, and in any disguise."""

import json
import textwrap

import pytest

from rung.diagnosis.explain import explain, explain_log
from rung.diagnosis.logs.log import utf8

BF16, TOOLKIT, GRAPHICS = "bf16-unsupported-gpu", "cuda-toolkit-mismatch", "graphics-api-feature-missing"
INT8, FLAGS = "int8-matmul-unsupported-gpu", "build-wrong-arch-flags"


def cublas(dtype, call="cublasGemmEx", end=None):
    said = f"&falpha, a, {dtype}, lda, b, {dtype}, ldb, &fbeta, c, {dtype}, ldc, CUDA_R_32F, CUBLAS_GEMM_DEFAULT)`"
    said = f"`{call}( handle, opa, opb, m, n, k, {said}"
    return f"RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling {said}"[:end]


def cmma(inputs, outputs, shape, end=None):
    m, n, k = shape.split("x")
    said = "Accelerated strategy should be available on your device: Unable to launch matmul because a required feature"
    units = f"Cmma on inputs Float({inputs}) and outputs Float({outputs}) with shape m={m}, n={n}, k={k} not supported."
    return f"{said} is unavailable: {units}"[:end]


def ggml(kernel, arch, archs, end=None):
    said = f"ggml-cuda.cu:1412: ERROR: CUDA kernel {kernel} has no device code compatible with CUDA arch {arch}."
    return f"{said} ggml-cuda.cu was compiled for: {archs}"[:end]


def torch(call, dtype, end=None):
    return f"RuntimeError: at::cuda::blas::{call}: not implemented for {dtype}"[:end]


IGEMMLT = "NotImplementedError: igemmlt not available (probably built with NO_CUBLASLT)"
BATCHED = "cublasGemmStridedBatchedEx"
LATTE = {"gpu": "NVIDIA GeForce RTX 2080 Ti", "cuda": "12.2", "torch": "2.1.0a0+29c30b1"}
#: The message, the environment and the cause: the original first.
STORIES = {
    "latte": [
        (cublas("CUDA_R_16F"), LATTE, TOOLKIT),
        (cublas("CUDA_R_16F"), {"gpu": "RTX 3090", "cuda": "11.8", "torch": "2.0.1+cu118"}, TOOLKIT),
        (cublas("CUDA_R_16F", BATCHED), {"gpu": "A100", "torch": "1.13.1+cu117"}, TOOLKIT),
        (cublas("CUDA_R_16F"), {"gpu": "Tesla V100"}, TOOLKIT),
        (cublas("CUDA_R_16F", end=180), {"gpu": "RTX 2080 Ti"}, TOOLKIT),
        (cublas("CUDA_R_16F", BATCHED), {"gpu": "RTX 4090", "torch": "2.3.0+cu121"}, TOOLKIT),
        (cublas("CUDA_R_32F", "cublasSgemm"), {"gpu": "RTX 3060", "torch": "1.12.0+cu116"}, TOOLKIT),
        (cublas("CUDA_R_16F"), {"gpu": "RTX 2080 Ti", "os": "Windows 10"}, TOOLKIT),
        (cublas("CUDA_R_16BF"), {"gpu": "RTX 3080"}, TOOLKIT),
        (cublas("CUDA_R_16BF"), {"gpu": "GTX 980"}, BF16),
        (cublas("CUDA_R_16BF", BATCHED), {"gpu": "Tesla M40"}, BF16),
        (cublas("CUDA_R_16BF", BATCHED), {"gpu": "Tesla P100", "torch": "1.11.0+cu113"}, BF16),
        (cublas("CUDA_R_8I"), {"gpu": "GTX 1080"}, INT8),
    ],
    "brush": [
        (cmma("F16", "F32", "16x16x16"), {"gpu": "RTX 3060"}, GRAPHICS),
        (cmma("BF16", "F32", "16x16x16"), {"gpu": "RTX 3060"}, GRAPHICS),
        (cmma("BF16", "BF16", "16x16x16"), {"gpu": "Radeon 780M"}, GRAPHICS),
        (cmma("TF32", "F32", "16x16x8"), {"gpu": "RTX 4090"}, GRAPHICS),
        (cmma("F16", "F16", "8x8x8"), {"gpu": "Apple M1"}, GRAPHICS),
        (cmma("F16", "F32", "16x16x16"), {}, GRAPHICS),
        (cmma("F16", "F32", "16x16x16"), {"gpu": "Intel Arc A770"}, GRAPHICS),
        (cmma("F16", "F32", "32x8x16"), {"gpu": "RX 6700 XT", "os": "Windows 11"}, GRAPHICS),
        (cmma("F16", "F32", "16x16x16", end=150), {"gpu": "RTX 3060"}, GRAPHICS),
        (cmma("F16", "F32", "16x16x16", end=180), {"gpu": "GTX 1080"}, GRAPHICS),
        (f"thread 'main' panicked at lib.rs:12:\n{cmma('F16', 'F32', '16x16x16')}", {"gpu": "RX 580"}, GRAPHICS),
    ],
    "bitsandbytes": [
        (IGEMMLT, {"gpu": "V100 (p3.2xlarge)"}, INT8),
        (IGEMMLT, {"gpu": "GTX 1080 Ti"}, INT8),
        (IGEMMLT, {"gpu": "Tesla P40"}, INT8),
        (IGEMMLT, {"gpu": "Tesla P100", "os": "Linux"}, INT8),
        (IGEMMLT, {"gpu": "GTX 970", "os": "Windows"}, INT8),
        (IGEMMLT[:46], {"gpu": "V100"}, INT8),
        (IGEMMLT, {}, INT8),
        (IGEMMLT, {"compute_capability": "7.0"}, INT8),
        (IGEMMLT, {"gpu": "Tesla M60", "library_versions": "bitsandbytes 0.35.1"}, INT8),
        (IGEMMLT.partition(" ")[2], {"gpu": "TITAN V", "cuda": "11.7"}, INT8),
        ("Your GPU does not support Int8 Matmul!", {"gpu": "GTX 1070"}, INT8),
    ],
    "llamafile": [
        (ggml("vec_dot_q8_0_q8_1_impl", 600, "500,600,700,750,800,900"), {"gpu": "NVIDIA P104-100"}, FLAGS),
        (ggml("vec_dot_q4_0_q8_1_impl", 600, "500,600,700,750,800,900"), {"gpu": "GTX 1080"}, FLAGS),
        (ggml("mul_mat_q4_K", 600, "520,600,700"), {"gpu": "Tesla P40"}, FLAGS),
        (ggml("mul_mat_vec_q", 610, "520,610,700"), {"gpu": "Quadro P2200"}, FLAGS),
        (ggml("flash_attn_ext_f16", 700, "500,600,700"), {"gpu": "RTX 2060"}, FLAGS),
        (ggml("mul_mat_q", 520, "520"), {"gpu": "GTX 1070"}, FLAGS),
        (ggml("vec_dot_q8_0_q8_1_impl", 600, "500,600", end=105), {"gpu": "GTX 1060"}, FLAGS),
        (ggml("vec_dot_q6_K_q8_1_impl_mmvq", 600, "500"), {}, FLAGS),
        (ggml("mul_mat_q", 500, "__CUDA_ARCH_LIST__"), {"gpu": "GTX 1050 Ti", "os": "Windows"}, FLAGS),
        ("HIP kernel mul_mat has no device code compatible with HIP arch 1030.", {}, FLAGS),
        (f"{ggml('mul_mat_q', 600, '600')}\n" * 20 + "CUDA error: unspecified launch failure", {"gpu": "P106"}, FLAGS),
    ],
    "gemma": [
        (torch("gemm", "struct c10::BFloat16"), {"gpu": "Quadro P2200"}, BF16),
        (torch("gemm", "struct c10::BFloat16"), {"gpu": "GTX 1080", "torch": "1.10.0+cu102"}, BF16),
        (torch("bgemm", "N3c108BFloat16E"), {"gpu": "P40"}, BF16),
        (torch("gemm", "N3c108BFloat16E"), {"gpu": "V100"}, BF16),
        (torch("gemm", "c10::BFloat16"), {"gpu": "RTX 2080 Ti"}, BF16),
        (torch("bgemm", "class c10::BFloat16"), {"os": "Windows"}, BF16),
        (torch("gemm", "struct c10::BFloat16", end=73), {"gpu": "GTX 1070"}, BF16),
        (torch("gemm", "struct c10::BFloat16"), {}, BF16),
        (torch("gemm_internal", "struct c10::BFloat16"), {"gpu": "GTX 1660"}, BF16),
        (torch("gemm_and_bias", "c10::BFloat16"), {"gpu": "V100"}, BF16),
        (torch("gemv", "struct c10::BFloat16"), {"compute_capability": "5.2"}, BF16),
        (torch("gemm", "struct c10::BFloat16"), {"gpu": "K80", "torch": "1.12"}, BF16),
    ],
}


def lines(text, start, end=""):
    return "".join(f"{start}{line}{end}\n" for line in text.split("\n")).encode()


DISGUISES = {
    "as it is": lambda text: text.encode(),
    "colored": lambda text: f"\x1b[31;1m{text[:20]}\x1b[0m{text[20:]}\x1b[K\n".encode(),
    "with progress bars": lambda text: f"10%|#   | 1/9\r20%|##  | 2/9\r{text}\r30%|### | 3/9".encode(),
    "of Windows": lambda text: f"start\r\n{text}\r\nend\r\n".encode(),
    "in UTF-16": lambda text: f"\ufeffstart\r\n{text}\r\n".encode("utf-16-le"),
    "in UTF-16 without mark": lambda text: f"start\r\n{text}\r\n".encode("utf-16-be"),
    "of a notebook": lambda text: (
        f"<div><pre><span class='x'>{text.replace('&', '&amp;').replace('`', '&#96;')}</span></pre>"
    ).encode(),
    "of a page in one line": lambda text: f"<pre>start<br/>{text.replace(' ', '&nbsp;')}<br></pre>".encode(),
    "of a table with bold words": lambda text: (
        f"<table><tr><td>3</td><td>{' '.join(f'<strong>{word}</strong>' for word in text.split())}</td></tr></table>"
    ).encode(),
    "of a word processor": lambda text: text.replace(" ", "\u202f").replace("_", "_\u200b").encode(),
    "in a service's log": lambda text: f"worker-1  | 2026-01-01 10:00:00 | ERROR | stderr | {text}".encode(),
    "below a traceback": lambda text: (
        "Traceback (most recent call last):\n" + '  File "a.py", line 3\n' * 30 + text
    ).encode(),
    "with broken bytes": lambda text: b"\xff\xfe\xfa start\n"[3:] + text.encode() + b"\n\x80\x81",
    "among warnings": lambda text: f"UserWarning: something is deprecated\n{text}\nINFO: exit\n".encode(),
    "colored by a library": lambda text: "\n".join(
        f"\x1b[0;31m{line[:12]}\x1b[38;5;9m{line[12:]}\x1b[0m" for line in text.split("\n")
    ).encode(),
    "with colors of which the escapes are lost": lambda text: f"[0;31m{text}[0m".encode(),
    "with a bar before each line": lambda text: lines(text, "\rEpoch 1:  3%|##     | 3/100 [00:03<01:00, 1.2it/s]"),
    "with a bar between the lines": lambda text: text.replace("\n", "\n\r 50%|##  | 1/2\r100%|####| 2/2\n").encode(),
    "of a notebook's file": lambda text: json.dumps(
        {"outputs": [{"evalue": text, "traceback": [f"\x1b[0;31mRuntimeError\x1b[0m: {text}"]}]}, indent=1
    ).encode(),
    "of a notebook's page": lambda text: (
        '<pre>\n<span class="ansi-red-fg">RuntimeError</span>    Traceback (most recent call last)\n'
        '<span class="ansi-green-fg">/tmp/ipykernel_1/1.py</span> in <span class="ansi-cyan-fg">&lt;module&gt;</span>'
        f"\n<span>Error</span>: {text.replace('&', '&amp;')}\n</pre>"
    ).encode(),
    "in UTF-16 with mark": lambda text: f"start\r\n{text}\r\n".encode("utf-16"),
    "in UTF-8 with mark": lambda text: f"\ufeff{text}".encode(),
    "folded at words": lambda text: "\n".join(textwrap.wrap(text, 80)).encode(),
    "folded anywhere": lambda text: "\n".join(text[at : at + 80] for at in range(0, len(text), 80)).encode(),
    "of a build machine": lambda text: lines(text, "2024-03-01T10:11:12.1234567Z ##[error]"),
    "quoted twice": lambda text: lines(text, "> > "),
    "of one process of many": lambda text: lines(text, "[rank0]: "),
    "of a container": lambda text: lines(text, '{"log":"', '\\n","stream":"stderr"}'),
    "in small letters": lambda text: text.lower().encode(),
}
CASES = [(name, number) for name, texts in STORIES.items() for number in range(len(texts))]


@pytest.mark.parametrize(("story", "number"), CASES)
def test_the_founding_five_and_their_relatives_are_known_in_any_disguise(story, number):
    text, environment, cause = STORIES[story][number]
    texts = {name: DISGUISES[name](text) for name in DISGUISES}
    assert {name: explain_log(utf8([data]), environment).cause for name, data in texts.items()} == dict.fromkeys(
        texts, cause
    )
    found = explain(text, environment)
    assert found.evidence
    assert found.fixes


def test_there_are_ten_variants_of_each_and_of_each_kind():
    assert all(len(texts) > 10 and len({text for text, *_ in texts}) > 1 for texts in STORIES.values())
    assert len(DISGUISES) > 10


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("story", STORIES)
def test_it_does_not_matter_in_what_pieces_a_log_comes(story, disguise):
    text, environment, _ = STORIES[story][0]
    data = DISGUISES[disguise](text)
    chunks = [data[start : start + 7] for start in range(0, len(data), 7)]
    assert explain_log(utf8([data[:70], *chunks[10:]]), environment) == explain_log(utf8([data]), environment)
