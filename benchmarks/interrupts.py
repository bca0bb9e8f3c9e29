"""Interrupt everything at random moments and compare what comes after with what comes without.

    python benchmarks/interrupts.py MODEL [library] [torch] [chat] [commands] [--count 200]

``library`` and ``torch`` (which is imported first): a program that loads a model, asks, and is interrupted in both,
``count`` times in all; ``chat``: ``rung run`` on a terminal, and while it loads; ``commands``: a quarter of ``count``
for each of quantize, convert, tune and splat train. Prints a table; exits with 1 where anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.interrupting import BAR, WORKS, Chat, alarms, interrupt, moments, run, stop_again_and_again

QUESTION = "Why is the sky blue?"
LONG = "Say in one word what this is about. " + "The light of the sun is scattered by the air. " * 10
TOKENS, CONTEXT = 16, 512


def ask(model: Any, question: str, **options: Any) -> str:
    """The model's answer."""
    return "".join(model.generate(question, max_tokens=TOKENS, temperature=0, **options))


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def program(path: str, loads: int, answers: int, seed: int, longest_load: float) -> dict[str, Any]:
    """Interrupt loading, then answering; return counts, a text, and a digest of logits."""
    import hashlib

    import rung

    cut: Counter[str] = Counter()
    wrong = 0
    with alarms():
        for at in moments(loads, 1.0, seed):  # more early than late: the second load is quicker than the first
            cut["load"] += interrupt(lambda: rung.load(path, context=CONTEXT), longest_load * at**2)
    start = time.perf_counter()
    model = rung.load(path, context=CONTEXT)
    loading = time.perf_counter() - start
    right = ask(model, QUESTION)
    ids = model.tokenizer.encode(LONG)[:200]

    def digest() -> str:
        return hashlib.sha256(model.logits(ids).numpy().tobytes()).hexdigest()

    logits = digest() if answers and "torch" in sys.modules else ""
    works: dict[str, Callable[[], object]] = {
        "prefill": lambda: ask(model, f"{time.monotonic()} {LONG}"),
        "decode": lambda: ask(model, QUESTION),
        "sample": lambda: "".join(model.generate(QUESTION, max_tokens=TOKENS, temperature=1, top_p=0.9, seed=3)),
    }
    longest = {name: seconds(work) for name, work in works.items()}
    with alarms():
        for number in range(answers):
            name = list(works)[number % len(works)]
            (at,) = moments(1, longest[name], seed + number)
            cut[name] += interrupt(works[name], at)
            wrong += ask(model, QUESTION) != right
            if logits and number % 10 == 0:
                wrong += digest() != logits
    return {"cut": dict(cut), "wrong": wrong, "text": right, "logits": logits or digest(), "load": loading}


def child(path: str, *given: Any, torch: bool, cache: str = "") -> dict[str, Any]:
    """``program`` in a process of its own."""
    code = f"import json, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += "import torch\n" if torch else ""
    code += "import interrupts; print('RESULT', json.dumps(interrupts.program(*json.loads(sys.argv[1]))))"
    environment = os.environ | ({"RUNG_CACHE": cache} if cache else {})
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([path, *given])], capture_output=True, text=True, env=environment
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not found:
        return {
            "cut": {},
            "wrong": 1,
            "text": f"ended with {done.returncode}: {done.stderr[-500:]}",
            "logits": "",
            "load": 1.0,
        }
    result: dict[str, Any] = json.loads(found[0].removeprefix("RESULT "))
    return result


def library(path: str, count: int, torch: bool) -> Iterator[tuple[str, str]]:
    """Loading (also where everything has to be compiled), then answers, in several processes."""
    reference = child(path, 0, 0, 0, 0.0, torch=torch)
    longest = reference["load"]
    cut: Counter[str] = Counter()
    wrong, texts = 0, []
    for number in range(4):
        found = child(path, count // 20, count * 3 // 20, number, longest, torch=torch)
        cut.update(found["cut"])
        wrong += found["wrong"] + (found["text"] != reference["text"]) + (found["logits"] != reference["logits"])
        texts.append(found["text"])
    for number in range(2):
        with tempfile.TemporaryDirectory() as cache:
            found = child(path, count // 20, 0, 100 + number, 10 * longest, torch=torch, cache=cache)
        cut["compile"] += found["cut"].get("load", 0)
        wrong += found["wrong"] + (found["text"] != reference["text"]) + (found["logits"] != reference["logits"])
        texts.append(found["text"])
    yield "reference", reference["text"][:60].replace("\n", " ")
    yield "interrupted in", ", ".join(f"{name} {times}" for name, times in cut.items()) + f" = {cut.total()}"
    yield "wrong", str(wrong) + "".join(f"\n    {text}" for text in texts if text != reference["text"])


def chat(path: str, count: int) -> Iterator[tuple[str, str]]:
    """Answers of a chat on a terminal, and its load, which Ctrl-C ends."""
    words = (path, "--temperature", "0", "--max-tokens", str(TOKENS), "--context", str(CONTEXT))
    started = time.monotonic()
    talk = Chat(*words)
    load = time.monotonic() - started
    right = talk.ask(QUESTION)
    longest = 1.2 * seconds(lambda: talk.ask(LONG))
    cut = wrong = 0
    for number, at in enumerate(moments(count * 9 // 10, longest)):
        cut += talk.stop(LONG if number % 2 else QUESTION, at)
        wrong += talk.ask(QUESTION) != right
    wrong += talk.close() != 0
    stops = [run(("run", *words, QUESTION), Path.cwd(), 0.3 + at) for at in moments(count // 10, load)]
    talk = Chat(*words)
    wrong += talk.ask(QUESTION) != right
    talk.close()
    wrong += sum(not stop.good for stop in stops)
    ended = [stop.seconds for stop in stops if stop.code]
    yield "interrupted in", f"answers {cut}, load {len(ended)}"
    yield "wrong", str(wrong) + "".join(f"\n    {stop}" for stop in stops if not stop.good)
    if ended:
        yield "seconds to the end", f"median {statistics.median(ended):.2f}, most {max(ended):.2f}"


def command(name: str, count: int) -> Iterator[tuple[str, str]]:
    """A command that writes, stopped again and again, then let to its end."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = stop_again_and_again(name, Path(folder), count)
    ended = [stop.seconds for stop in outcome.stops if stop.code]
    yield "stopped", f"{len(ended)} of {len(outcome.stops)}; others were done before"
    yield "wrong", str(len(outcome.wrong)) + "".join(f"\n    {each}" for each in outcome.wrong)
    if ended:
        late = sum(each > BAR for each in ended)
        yield (
            "seconds to the end",
            f"median {statistics.median(ended):.2f}, most {max(ended):.2f}, above {BAR:g}: {late}",
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("parts", nargs="*", default=["library", "torch", "chat", "commands"])
    parser.add_argument("--count", type=int, default=200)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # behind a shell's & what is started would ignore it
    parts: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
        "library": lambda: library(given.model, given.count, False),
        "torch": lambda: library(given.model, given.count, True),
        "chat": lambda: chat(given.model, given.count),
    }
    parts |= {name: lambda name=name: command(name, given.count // 4) for name in WORKS}  # type: ignore[misc]
    wanted = [name for part in given.parts for name in (WORKS if part == "commands" else [part])]
    bad = False
    for name in wanted:
        start = time.monotonic()
        rows = dict(parts[name]())
        bad |= not rows["wrong"].startswith("0")
        print(
            f"{name}, {time.monotonic() - start:.0f} s", *(f"  {key}: {text}" for key, text in rows.items()), sep="\n"
        )
        sys.stdout.flush()
    sys.exit(bad)


if __name__ == "__main__":
    main()
