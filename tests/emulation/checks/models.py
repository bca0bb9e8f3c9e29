"""Whole models: logits beside references in float32, and greedy tokens beside x86's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.emulation.checks import Check

#: Whole models of the fixtures: attention, norms, rotation, embedding and sampling beside the products.
WHOLE = ("llama-q4_0", "gemma2-q4_k_m")
_MODELS = Path(__file__).parents[2] / "fixtures" / "gguf"
#: Largest mean KL divergence from logits in float32: 0.0006 and 0.0002 are measured at each level of x86, of q4_0 0.043
#: and 0.006 at the highest.
_DIVERGENCE = {"f16": 0.001, "q8_0": 0.001, "q5_1": 0.02, "q4_0": 0.06}
#: Greedy tokens of x86 by model and type of its cache, and for each the KL divergence that another choice takes.
_GREEDY = Path(__file__).parents[1] / "greedy.json"
_TOKENS = 24
#: A choice that so small a KL divergence turns is a coin toss. Logits of both processors may be off from float32 by
#: what a cache in float16 may, so from each other by four times as much; what another cache adds is the same on both.
_COIN_TOSS = 4 * _DIVERGENCE["f16"]


def model(name: str, cache_type: str) -> str:
    """Logits of a whole model beside its reference, with a cache in f16, q8_0 or q4_0; the probe and the checks of its
    rungs run in children first."""
    import rung

    kept = np.load(_MODELS / f"{name}.npz")
    loaded = rung.load(str(_MODELS / f"{name}.gguf"), context=128, cache_type=cache_type)
    taken = dict(loaded.report.rungs)
    if not any(rung_name == "numba.step" for rung_name in taken.values()):
        return f"not computed by its kernels: {taken}"
    if wrong := _another_choice(loaded, f"{name}, {cache_type}"):
        return wrong
    got, expected = np.asarray(loaded.logits(kept["ids"].tolist()), np.float64), kept["logits"].astype(np.float64)
    divergence = _log_softmax(expected)
    divergence = float((np.exp(divergence) * (divergence - _log_softmax(got))).sum(-1).mean())
    return "" if divergence < _DIVERGENCE[cache_type] else f"the KL divergence is {divergence:.5f}"


def _chosen(model: Any) -> list[int]:
    """Return the tokens of the most probable answer."""
    answer = model.generate("Hi", raw=True, max_tokens=_TOKENS, temperature=0)
    list(answer)
    return [int(token) for token in answer.tokens]


def _logits_of_answer(model: Any, answer: list[int]) -> np.ndarray:
    """Return the logits that each token of an answer was chosen by, in float64."""
    prompt = model.prompt_ids("Hi")
    return np.asarray(model.logits([*prompt, *answer])[len(prompt) - 1 : -1], np.float64)


def _another_choice(model: Any, name: str) -> str:
    """Compare the greedy answer with x86's, and the choice after each of x86's tokens, where it is no coin toss.

    An answer that goes on from a coin toss that fell another way tells nothing.
    """
    kept = json.loads(_GREEDY.read_text(encoding="utf-8"))[name]
    ids, sure = kept["tokens"], [needed > _COIN_TOSS for needed in kept["divergence"]]
    if not any(sure):
        return "every choice of x86 is a coin toss"
    after = _logits_of_answer(model, ids).argmax(-1).tolist()
    differ = [at for at, token in enumerate(after) if token != ids[at]]
    if any(sure[at] for at in differ):
        return f"after tokens of x86 {after} are chosen, not {ids}"
    answer = _chosen(model)
    first = next((at for at, (own, token) in enumerate(zip(answer, ids, strict=True)) if own != token), None)
    return "" if first is None or not sure[first] else f"the answer is {answer}, not {ids}"


def _divergence_of_another_choice(logits: np.ndarray) -> np.ndarray:
    """Return the least KL divergence that makes the second most probable token of each row as probable as the first."""
    first, second = np.moveaxis(np.exp(np.sort(_log_softmax(logits), axis=-1)[:, :-3:-1]), -1, 0)
    middle = (first + second) / 2
    found: np.ndarray = first * np.log(first / middle) + second * np.log(second / middle)
    return found


def keep_choices() -> None:
    """Write the greedy tokens of every model and type of cache."""
    import rung

    kept = {}
    for name in WHOLE:
        for cache_type in _DIVERGENCE:
            model = rung.load(str(_MODELS / f"{name}.gguf"), context=128, cache_type=cache_type)
            tokens = _chosen(model)
            divergence = _divergence_of_another_choice(_logits_of_answer(model, tokens))
            kept[f"{name}, {cache_type}"] = {"tokens": tokens, "divergence": [float(f"{d:.3g}") for d in divergence]}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(choices)}" for name, choices in kept.items())
    _GREEDY.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    apart = logits - logits.max(-1, keepdims=True)
    found: np.ndarray = apart - np.log(np.exp(apart).sum(-1, keepdims=True))
    return found


def checks() -> Iterator[tuple[str, Check]]:
    """Every check by name."""
    for name in WHOLE:
        for kept in _DIVERGENCE:
            yield f"model {name}, cache in {kept}", lambda name=name, kept=kept: model(name, kept)  # type: ignore[misc]
