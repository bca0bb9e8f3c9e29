"""The starters with their real weights: what the package index gives, and what the first one says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rung.models.open import open_card
from rung.models.store.starters import FIRST, card_of, starters
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
