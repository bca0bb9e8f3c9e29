"""Three of the founding five as short programs: each dies on its card, and passes there with ``rung exec``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

import rung
from rung.exec.report import read
from tests.exec.helped import helped

PROGRAMS = Path(__file__).parent / "programs"
GEMM_EX = (
    "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, opa, opb, m, n, k, &falpha, a, "
    "CUDA_R_16F, lda, b, CUDA_R_16F, ldb, &fbeta, c, CUDA_R_16F, ldc, CUDA_R_32F, CUBLAS_GEMM_DFALT_TENSOR_OP)`"
)
IGEMMLT = "igemmlt not available (probably built with NO_CUBLASLT)"
CASES = {
    "gemma": ("Quadro P2200", {"software": "torch 1.10+cu102"}, "not implemented for struct c10::BFloat16", "float32"),
    "latte": (
        "RTX 2080 Ti", {"defects": [rung.Defect("matmul", "f16", RuntimeError, GEMM_EX)]}, "cublasGemmEx", "float32"
    ),
    "bitsandbytes": (
        "V100", {"defects": [rung.Defect("_int_mm", "int8", NotImplementedError, IGEMMLT)]}, "NO_CUBLASLT", "emulated"
    ),
}  # fmt: skip


@pytest.fixture
def run(monkeypatch, capsys):
    def call(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        before = torch.get_default_dtype()
        try:
            runpy.run_path(str(PROGRAMS / f"{name}.py"))
        finally:
            torch.set_default_dtype(before)
        return [float(value) for value in capsys.readouterr().out.split()]

    return call


@pytest.mark.parametrize("name", CASES)
def test_it_dies_and_passes_with_help(name, run, tmp_path):
    card, more, words, lower = CASES[name]
    with rung.simulate(card, **more), pytest.raises(RuntimeError, match=words):
        run(name)
    notes = tmp_path / "notes"
    notes.touch()
    with helped(notes, card, **more):
        found = run(name)
    assert found == pytest.approx(run(name, "cpu"), rel=0.05, abs=0.05)
    assert {after for _, _, _, after, _ in read(str(notes))} == {lower}
