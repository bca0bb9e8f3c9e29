"""Compare results of an emulated processor with float64; print a line of JSON for each check.

python -m tests.emulation.checks [NAME...]
python -m tests.emulation.checks --keep   # writes greedy.json: what x86 chooses, at this processor's own level
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rung import formats
from rung.formats import Encoded
from rung.kernels.cpu import target
from rung.kernels.cpu.encode import encoding
from rung.kernels.cpu.gemm.product import product
from rung.kernels.cpu.pack.layouts import FORMATS as PACKED
from rung.kernels.cpu.pack.packing import pack, unpack
from rung.ops.linear.tolerance import tolerance
from rung.run.self_check.encoders import compare
from tests.support.weights import weight

#: Formats by name; of the codebooks one size of block.
LINEAR = tuple(
    f"{name}:64" if name in ("nf4", "fp4") else {"u2": "u2:32", "u4": "u4:32", "u8": "u8:32"}.get(name, name)
    for name in PACKED
)
ENCODED = ("q4_0", "q8_0", "q4_k")
#: Whole models of the fixtures: attention, norms, rotation, embedding and sampling beside the products.
WHOLE = ("llama-q4_0", "gemma2-q4_k_m")
_MODELS = Path(__file__).parents[1] / "fixtures" / "gguf"
#: Largest mean KL divergence from logits in float32: 0.0006 and 0.0002 are measured at each level of x86, of q4_0 0.043
#: and 0.006 at the highest.
_DIVERGENCE = {"f16": 0.001, "q8_0": 0.001, "q5_1": 0.02, "q4_0": 0.06}
#: Greedy tokens of x86 by model and type of its cache, and for each the KL divergence that another choice takes.
_GREEDY = Path(__file__).with_name("greedy.json")
_TOKENS = 24
#: A choice that so small a KL divergence turns is a coin toss. Logits of both processors may be off from float32 by
#: what a cache in float16 may, so from each other by four times as much; what another cache adds is the same on both.
_COIN_TOSS = 4 * _DIVERGENCE["f16"]
_ROWS, _COLUMNS = 40, 512  # two groups of 16 rows and half of one, two blocks


def instructions() -> str:
    """Products, tables and conversions of the level: compiled here, by this processor."""
    from rung.kernels.isa import probes

    return probes.check("isa.kernels")


def linear(name: str) -> str:
    """Packing, the way back, and products with 1, 3 and 41 rows, the last to the bytes of rows on their own."""
    encoded = weight(formats.get(name), _ROWS, _COLUMNS)
    packed = pack(encoded, threads=2)
    back = unpack(packed)
    if any(not np.array_equal(array, back.parts[part]) for part, array in encoded.parts.items()):
        return "unpacked bytes are others"
    return next(filter(None, (_product(packed, encoded, name, rows) for rows in (1, 3, 41))), "")


def _product(packed: object, encoded: Encoded, name: str, rows: int) -> str:
    x = np.random.default_rng(rows).standard_normal((rows, _COLUMNS), dtype=np.float32)
    got = np.full((rows + 1, _ROWS), 7.0, np.float32)  # a row more, which must stay as it is
    multiply(packed, x, got)
    dense, wide = formats.decode(encoded).astype(np.float64), x.astype(np.float64)
    unit = np.linalg.norm(wide, axis=1)[:, None] * np.linalg.norm(dense, axis=1) / _COLUMNS**0.5
    error = float(np.abs((got[:rows] - wide @ dense.T) / unit).max())
    if not error <= tolerance("numba.row", name, "f32"):
        return f"{rows} rows: an error of {error:.4f}"
    alone = np.empty((1, _ROWS), np.float32)
    multiply(packed, x[rows - 1 :], alone)
    if not np.array_equal(alone[0], got[rows - 1]):
        return f"{rows} rows: the last is another one on its own"
    return "" if np.all(got[rows] == 7.0) else f"{rows} rows: written behind the last"


def multiply(packed: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Write the product of all rows of ``x`` to ``y``, float32."""
    product(packed, x.ctypes.data, x.strides[0], len(x), y.ctypes.data, y.ctypes.data, "f32")


def encoders(name: str) -> str:
    """The bytes that NumPy writes."""
    if not encoding.compiles(formats.get(name)):
        return "there is no compiler"
    return compare(name)


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


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    """Every check by name."""
    yield "instructions", instructions
    for name in LINEAR:
        yield f"linear {name}", lambda name=name: linear(name)  # type: ignore[misc]
    for name in ENCODED:
        yield f"encode {name}", lambda name=name: encoders(name)  # type: ignore[misc]
    for name in WHOLE:
        for kept in ("f16", "q8_0", "q5_1", "q4_0"):
            yield f"model {name}, cache in {kept}", lambda name=name, kept=kept: model(name, kept)  # type: ignore[misc]


def main(prefixes: list[str]) -> None:
    """Run those checks, or all."""
    print(json.dumps({"level": target.level().name, "features": sorted(target.features())}), flush=True)
    for name, check in checks():
        if prefixes and not any(name.startswith(each) for each in prefixes):
            continue
        begun = time.process_time()
        try:
            wrong = check()
        except Exception:  # one that cannot run is wrong, and the next ones are tried
            wrong = traceback.format_exc()
        print(json.dumps({"check": name, "wrong": wrong, "seconds": round(time.process_time() - begun, 1)}), flush=True)


if __name__ == "__main__":
    keep_choices() if sys.argv[1:] == ["--keep"] else main(sys.argv[1:])
