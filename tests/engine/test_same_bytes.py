"""Answers are the same bytes alone and beside others, as ``benchmarks/same_bytes.py`` compares them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GGUF = ROOT / "tests" / "fixtures" / "gguf"
MODELS = ["demo", str(GGUF / "gemma2-q8_0.gguf"), str(GGUF / "llama-q4_k_m.gguf")]


@pytest.mark.parametrize("cache_type", ["q8_0", "q5_1", "q4_0"])
def test_a_hundred_answers_from_a_cache_in_blocks(cache_type):
    command = [sys.executable, "benchmarks/same_bytes.py", str(GGUF / "llama-q4_k_m.gguf"), "--cache-type", cache_type]
    done = subprocess.run([*command, "--answers", "100"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 100 differ" in done.stdout


def test_two_hundred_answers_alone_and_in_company():
    command = [sys.executable, "benchmarks/same_bytes.py", *MODELS, "--answers", "200"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("0 of 67 differ") == 3
