"""A model over two nodes that neither of them holds alone: its bytes, its memory, a hop, and its speed.

    python -m benchmarks.fleet.layers MODEL [--memory 1GB] [--context 256] [--tokens 64]

Two nodes in network namespaces have a budget each, within which the model does not fit. Their answers are compared byte
by byte with those of one machine, and the logits of the same two parts in this process with those of the whole. The
bound of four answers at once: the tokens a second of the slower part, alone in a process with a thread as nodes have;
the first part, with the head, gets its own hidden states back at once. Steps are timed in turns. It is given for
groups of two sequences, as two nodes have them, and for all four in one step. A hop: what a token of one answer takes
beside the steps of both parts, which says something where steps are short (SmolLM2). Needs root, Linux and Ray.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.fleet.parts import status
from tests.support.fleet import Machine, machines_of, namespaces

from rung.core.text import size
from rung.engine.load import load
from rung.engine.open_model import open_any
from rung.engine.scheduling.stages import Split, Stage, load_stage
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.models.card import ModelCard
from rung.models.lookup import find_path

#: Answers at once, and tokens of the shorter of two runs whose difference is timed: prompts are in both.
_ANSWERS, _FEW = 4, 16
#: First numbers of the answers of timed runs.
_NUMBERS = itertools.count(100, 100)
#: Words of the processes that have parts, in their commands.
_PARTS = (b"engine_child", b"ray::StageHost")


@contextlib.contextmanager
def two_nodes(model: str, options: Sequence[str]) -> Iterator[list[Machine]]:
    """Run a head that computes and a node, with a model that is divided."""
    with (
        tempfile.TemporaryDirectory() as folder,
        namespaces(2, "bl") as names,
        contextlib.ExitStack() as stack,
    ):
        head, node = machines_of(names, Path(folder))
        stack.callback(head.stop)
        head.start("up", model, "--address", head.address, "--name", "one", *options)
        token = head.wait_for(r"--token (\S+)")
        stack.callback(node.stop)
        node.start("join", head.address, "--token", token, "--name", "two")
        head.wait_for("is ready on")
        yield [head, node]


def peaks(machines: Sequence[Machine]) -> list[int]:
    """Return the most bytes that each process with a part has had resident."""
    found = []
    for machine in machines:
        for pid in machine.processes():
            folder = Path(f"/proc/{pid}")
            if any(word in (folder / "cmdline").read_bytes() for word in _PARTS):
                lines = (folder / "status").read_text().splitlines()
                found.append(1024 * int(next(each for each in lines if each.startswith("VmHWM")).split()[1]))
    return found


@functools.cache
def without_end(model: str) -> dict[str, float]:
    """Return biases with which no token ends an answer."""
    card = open_any(find_path(model))
    assert isinstance(card, ModelCard)
    return {str(token): -100.0 for token in {*card.end_tokens, *Tokenizer.from_card(card).end_tokens}}


def bodies(model: str, first: int, count: int, most: int) -> list[dict[str, Any]]:
    """Return completions that no token ends, of other prompts each, from number ``first`` on. An answer that was
    there before would be guessed."""
    each = {"max_tokens": most, "temperature": 1, "logit_bias": without_end(model)}
    return [{**each, "prompt": f"number {number}", "seed": number} for number in range(first, first + count)]


def ask(head: Machine, model: str, first: int, count: int, most: int) -> tuple[list[str], float]:
    """Return the texts of answers that are requested at once, and the seconds until the last."""
    found = head.ask_all(bodies(model, first, count, most), "/v1/completions")
    assert all(each["status"] == 200 for each in found), found
    return [json.loads(each["content"])["choices"][0]["text"] for each in found], max(e["seconds"] for e in found)


def answers(model: Any, first: int, count: int, most: int) -> tuple[list[str], float]:
    """Return the same of a model in this process."""

    def one(number: int) -> str:
        bias = dict.fromkeys(model.end_tokens, -100.0)
        options = {"max_tokens": most, "temperature": 1.0, "seed": number, "logit_bias": bias}
        return "".join(model.generate(f"number {number}", raw=True, **options))

    begun = time.perf_counter()
    with ThreadPoolExecutor(count) as threads:
        texts = list(threads.map(one, range(first, first + count)))
    return texts, time.perf_counter() - begun


def rate(run: Callable[[int, int, int], tuple[list[str], float]], count: int, most: int) -> float:
    """Return tokens a second of answers at once, without what their prompts take."""
    short, long = run(next(_NUMBERS), count, _FEW)[1], run(next(_NUMBERS), count, most)[1]
    return count * (most - _FEW) / (long - short)


def stage_seconds(stage: Stage, hidden: int, rows: int) -> float:
    """Return the time of a step of so many sequences through a part, at position 40: the median of 20."""
    words = [rows, 0, *(word for row in range(rows) for word in (1, 40, 1, 1, row))]
    batch = np.array(words, "<i8").tobytes()
    states = np.random.default_rng(1).standard_normal((rows, hidden)).astype(np.float32).tobytes()
    found = []
    for _ in range(24):
        begun = time.perf_counter()
        stage.compute(batch, states)
        found.append(time.perf_counter() - begun)
    return statistics.median(found[4:])


def first_seconds(model: Any, rows: int) -> float:
    """Return the time of a step of so many sequences through the first part and its head, at position 40."""
    backend, ids = model.backend, [1 + k for k in range(40)]
    caches = [backend.begin([*ids, 1], str(number)) for number in range(rows)]
    for cache in caches:
        backend.compute([(cache, ids, 0, None)])
        cache.advance(ids)
    found = []
    for _ in range(24):
        begun = time.perf_counter()
        backend.compute([(cache, [1], 1, None) for cache in caches])
        found.append(time.perf_counter() - begun)
    for number, cache in enumerate(caches):
        backend.end(cache, str(number), False)
    return statistics.median(found[4:])


def in_parts(model: str, cut: int, options: dict[str, Any]) -> tuple[Any, Stage, ModelCard]:
    """Return the first part, which sends hidden states to the second in this process, the second, and the card."""
    card = open_any(find_path(model))
    assert isinstance(card, ModelCard)
    stage = load_stage(card, cut, len(card.decoder.layers), options)
    split = Split(cut, lambda batch, hidden: lambda: stage.compute(batch, hidden), 2)
    return load(model, device="cpu", split=split, **options), stage, card


def bounds(model: str, cut: int, options: dict[str, Any], most: int) -> dict[str, Any]:
    """Return the rates of each part alone, the largest difference of logits from the whole's, and its texts."""
    both, stage, card = in_parts(model, cut, options)
    ids = [3 + 7 * k % 900 for k in range(48)]
    ours = both.logits(ids)
    found: dict[str, Any] = {}
    alone = load(model, device="cpu", split=Split(cut, lambda batch, hidden: lambda: hidden, 2), **options)
    hidden, steps = card.decoder.hidden, (1, 2, 4)
    rounds = [
        ({n: first_seconds(alone, n) for n in steps}, {n: stage_seconds(stage, hidden, n) for n in steps})
        for _ in range(3)
    ]
    for node, name in enumerate(("first", "second")):
        found[name] = {n: n / min(each[node][n] for each in rounds) for n in steps}
    del both, stage, alone
    whole = load(model, device="cpu", **options)
    found["difference"] = float(np.abs(np.asarray(ours) - np.asarray(whole.logits(ids))).max())
    found["texts"] = answers(whole, 0, _ANSWERS, most)[0]
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    numbers = {"context": arguments.context, "parallel": _ANSWERS, "threads": 1}
    options = [
        word for name, value in {**numbers, "memory": arguments.memory}.items() for word in (f"--{name}", str(value))
    ]
    with two_nodes(arguments.model, options) as machines:
        head = machines[0]
        nodes = [each["models"][0] for each in status(head)["nodes"]]
        print(head.said().splitlines()[-3], flush=True)
        texts, _ = ask(head, arguments.model, 0, _ANSWERS, arguments.tokens)
        together = rate(lambda *of: ask(head, arguments.model, *of), _ANSWERS, arguments.tokens)
        single = rate(lambda *of: ask(head, arguments.model, *of), 1, arguments.tokens)
        taken = peaks(machines)
    cut = next(int(each["layers"].split()[-1]) + 1 for each in nodes if each["layers"].startswith("layers 0 "))
    for node, most in zip(
        sorted(nodes, key=lambda each: each["layers"] != f"layers 0 to {cut - 1}"), taken, strict=False
    ):
        print(f"{node['layers']}: planned {size(node['memory'])}, most resident {size(most)}")
    found = bounds(arguments.model, cut, numbers, arguments.tokens)
    print(
        f"texts equal to one machine's: {texts == found['texts']}; largest difference of logits: {found['difference']}"
    )
    for name in ("first", "second"):
        print(f"{name} part alone:", ", ".join(f"{rate:.2f} tokens/s, {n} a step" for n, rate in found[name].items()))
    groups, in_one = (min(found[name][n] for name in ("first", "second")) for n in (2, 4))
    print(f"{_ANSWERS} answers: {together:.2f} tokens/s, {together / groups:.0%} of the slower part in groups of two,")
    print(f"{together / in_one:.0%} of the slower part with all four in a step ({in_one:.2f})")
    steps = 1 / found["first"][1] + 1 / found["second"][1]
    hop = 1000 * (1 / single - steps)
    print(f"one answer: {single:.2f} tokens/s; a hop there and back takes {hop:.1f} of {1000 / single:.1f} ms")


if __name__ == "__main__":
    main()
