"""The starters with their real weights: what the package index gives, and what the first one says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rung.models.open import open_card
from rung.models.store.starters import FIRST, card_of, starters
from tests.fixtures import references
from tests.real_models import pulled, store_of

ANSWER = "The capital of Japan is Tokyo."


@pytest.fixture(params=list(starters()))
def starter(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """Each starter's name and file."""
    return request.param, pulled(request.param, request.config)


def test_the_row_says_what_the_header_says(starter: tuple[str, Path]) -> None:
    """``rung check`` and ``rung plan`` answer alike before and after the file is here."""
    name, path = starter
    real, said = open_card(path), card_of(starters()[name])
    facts = [{(t.role, t.shape, t.format, t.bytes) for t in card.tensors} for card in (real, said)]
    assert facts[0] == facts[1]
    same = {"ropes": (), "norm_epsilon": 0.0, "norm_offset": 0.0}  # norms: the converter has added it, in f32
    assert replace(real.decoder, **same) == replace(said.decoder, **same)
    assert (real.chat_template is not None) == starters()[name].chats
    assert path.stat().st_size == starters()[name].size


def ask(config: pytest.Config, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Call ``rung run`` without a model, on the store of real models."""
    pulled(FIRST, config)
    environment = {**os.environ, "RUNG_MODELS": str(store_of(config)), **variables}
    return subprocess.run(
        [sys.executable, "-m", "rung", "run", *options],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment,
        check=True,
    )


def test_the_first_answer_is_true(pytestconfig: pytest.Config) -> None:
    done = ask(pytestconfig)
    assert done.stdout == f"{ANSWER}\n"
    assert "SmolLM2 135M Instruct is asked: What is the capital of Japan?" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "variables"),
    [
        (["--format", "f32"], {}),
        ([], {"NUMBA_CPU_FEATURES": "-avx512vnni"}),
        ([], {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c"}),
        ([], {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse4.2"}),
    ],
    ids=["f32", "no-vnni", "haswell", "nehalem"],
)
def test_the_first_answer_is_true_on_any_processor(
    pytestconfig: pytest.Config, options: list[str], variables: dict[str, str]
) -> None:
    assert json.loads(ask(pytestconfig, "--json", *options, **variables).stdout)["text"].strip() == ANSWER


def test_tokens_of_prose_are_those_of_transformers(pytestconfig: pytest.Config) -> None:
    """The tokenizer that the file holds, read by another program."""
    transformers = pytest.importorskip("transformers")
    import rung

    path = pulled(FIRST, pytestconfig)
    prose = (Path(__file__).parents[1] / "data" / "prose.txt").read_text(encoding="utf-8")
    model = rung.load(str(path), context=256)
    theirs = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    ours = model.tokenizer.encode(prose, special=False, bos=False)
    assert list(ours) == theirs.encode(prose, add_special_tokens=False)


#: llama.cpp's divergence from the same reference on the same file and text, as benchmarks/real_models.py measured it.
PEER = {"smollm2": 2.34e-3, "gemma3-270m": 4.02e-3}


@pytest.mark.parametrize("name", ["smollm2", pytest.param("gemma3-270m", marks=pytest.mark.slow)])
def test_logits_of_prose_are_those_of_transformers(name: str, pytestconfig: pytest.Config) -> None:
    """In f32 on the decoded file: as a prompt, and token by token; the perplexity of the text within 1 %."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    import rung

    path = pulled(name, pytestconfig)
    prose = (Path(__file__).parents[1] / "data" / "prose.txt").read_text(encoding="utf-8")
    model = rung.load(str(path), device="cpu", context=512)
    ids = np.array(model.tokenizer.encode(prose, special=True, bos=True)[:384])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype="float32")
    with torch.inference_mode():
        expected = theirs(torch.tensor(ids[None])).logits[0].numpy()
    del theirs
    for found in (model.logits(ids.tolist()).numpy(), references.token_by_token(model, ids)):
        agreement = references.agreement(expected, found)
        assert agreement.divergence <= 1.1 * PEER[name]
        assert agreement.same_choice >= references.SAME_CHOICE
        assert perplexity(found, ids) == pytest.approx(perplexity(expected, ids), rel=0.01)


def perplexity(logits: np.ndarray, ids: np.ndarray) -> float:
    """Return the perplexity of ids 1 and on."""
    shifted = logits[:-1].astype(np.float64) - logits[:-1].max(axis=-1, keepdims=True)
    chosen = shifted[np.arange(len(ids) - 1), ids[1:]] - np.log(np.exp(shifted).sum(axis=-1))
    return float(np.exp(-chosen.mean()))
