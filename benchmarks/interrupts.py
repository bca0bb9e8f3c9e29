"""Interrupt everything at random moments and compare what comes after with what comes without.

    python benchmarks/interrupts.py MODEL [library] [torch] [chat] [commands] [--count 200]

``library`` and ``torch`` (which is imported first): programs that load a model, ask, and are interrupted in both until
``count`` interrupts have hit; ``chat``: ``rung run`` on a terminal, and while it compiles and loads; ``commands``: a
quarter of ``count`` for each of quantize, convert, tune and splat train. An interrupt that comes when the work is done
is not counted. Prints a table; exits with 1 where anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.interrupting import BAR, START, WORKS, Chat, Outcome, Stop, alarms, interrupt, run, stop_again_and_again

QUESTION = "Why is the sky blue?"
LONG = "Say in one word what this is about. " + "The light of the sun is scattered by the air. " * 10
TOKENS, CONTEXT = 16, 512


def ask(model: Any, question: str, max_tokens: int = TOKENS) -> str:
    """The model's answer."""
    return "".join(model.generate(question, max_tokens=max_tokens, temperature=0))


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def hits(call: Callable[[], object], count: int, longest: float, random_: random.Random) -> Iterator[bool]:
    """Interrupt a call at random moments until ``count`` interrupts have hit; yield whether each did."""
    left, attempts = count, 0
    while left and attempts < 6 * count:
        start = time.perf_counter()
        hit = interrupt(call, random_.uniform(0, longest))
        if not hit:
            longest = min(longest, time.perf_counter() - start)  # a second load is quicker than the first
        left, attempts = left - hit, attempts + 1
        yield hit


def program(path: str, loads: int, answers: int, seed: int, longest_load: float) -> dict[str, Any]:
    """Interrupt loading, then answering, so many times each; return counts, a text, and a digest of logits."""
    import hashlib

    import rung

    random_, cut, wrong = random.Random(seed), Counter[str](), 0
    with alarms():
        cut["load"] = sum(hits(lambda: rung.load(path, context=CONTEXT), loads, longest_load, random_))
    start = time.perf_counter()
    model = rung.load(path, context=CONTEXT)
    loading = time.perf_counter() - start
    right = ask(model, QUESTION)
    ids = model.tokenizer.encode(LONG)[:200]

    def digest() -> str:
        return hashlib.sha256(model.logits(ids).numpy().tobytes()).hexdigest()

    logits = digest() if answers and "torch" in sys.modules else ""
    works: dict[str, Callable[[], object]] = {
        "prefill": lambda: ask(model, f"{time.monotonic()} {LONG}", max_tokens=1),
        "decode": lambda: ask(model, QUESTION),
        "sampling": lambda: "".join(model.generate(QUESTION, max_tokens=TOKENS, temperature=1, top_p=0.9, seed=3)),
    }
    with alarms():
        for index, (name, work) in enumerate(works.items()):
            for hit in hits(work, (answers + index) // len(works), seconds(work), random_):
                cut[name] += hit
                wrong += ask(model, QUESTION) != right
                if logits and cut[name] % 5 == 0:
                    wrong += digest() != logits
    return {"cut": dict(cut), "wrong": wrong, "text": right, "logits": logits or digest(), "load": loading}


def child(path: str, *arguments: Any, torch: bool, cache: str = "") -> dict[str, Any]:
    """``program`` in a process of its own."""
    code = f"import json, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += "import torch\n" if torch else ""
    code += "import interrupts; print('RESULT', json.dumps(interrupts.program(*json.loads(sys.argv[1]))))"
    environment = os.environ | ({"RUNG_CACHE": cache} if cache else {})
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([path, *arguments])], capture_output=True, text=True, env=environment
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
    longest, compiling, loads = reference["load"], count // 20, count * 3 // 20
    found: list[dict[str, Any]] = []
    for number in range(4):
        answers = (count - compiling - loads + number) // 4
        found.append(child(path, (loads + number) // 4, answers, number, longest, torch=torch))
        progress(found[-1])
    for number in range(4):
        with tempfile.TemporaryDirectory() as cache:
            compiled = child(path, (compiling + number) // 4, 0, 100 + number, 5 * longest, torch=torch, cache=cache)
        compiled["cut"] = {"compile": compiled["cut"].get("load", 0)}
        found.append(compiled)
        progress(found[-1])
    cut: Counter[str] = Counter()
    wrong = 0
    for each in found:
        cut.update(each["cut"])
        wrong += each["wrong"] + (each["text"] != reference["text"]) + (each["logits"] != reference["logits"])
    yield "reference", reference["text"][:60].replace("\n", " ")
    yield "interrupted in", ", ".join(f"{name} {times}" for name, times in cut.items()) + f" = {cut.total()}"
    yield "wrong", str(wrong) + "".join(f"\n    {e['text']}" for e in found if e["text"] != reference["text"])


def progress(so_far: object) -> None:
    """Say on stderr what came of a part of a long count."""
    print(f"  {time.strftime('%H:%M:%S')} {so_far}", file=sys.stderr, flush=True)


def answers_of_chat(words: Sequence[str], count: int, seed: int) -> tuple[Counter[str], int]:
    """Stop answers of one chat ``count`` times; return in what they were stopped, and how many later ones are wrong."""
    talk = Chat(*words)
    right, random_, wrong = talk.ask(QUESTION), random.Random(seed), 0
    longest = {question: seconds(lambda question=question: talk.ask(question)) for question in (LONG, QUESTION)}  # type: ignore[misc]
    cut: Counter[str] = Counter()
    for number in range(4 * count):
        question = QUESTION if number % 2 else LONG
        if where := talk.stop(question, random_.uniform(0, longest[question])):
            cut[where] += 1
        wrong += talk.ask(QUESTION) != right
        if number % 10 == 9:
            progress((dict(cut), wrong))
        if cut.total() == count:
            break
    return cut, wrong + (talk.close() != 0)


def loads_of_chat(words: Sequence[str], count: int, cache: str) -> list[Stop]:
    """Stop ``rung run`` before its answer, ``count`` times; it compiles where ``cache`` is empty at first."""
    environment = os.environ | ({"RUNG_CACHE": cache} if cache else {})
    random_, longest, stops = random.Random(5), 30.0 if cache else 5.0, list[Stop]()
    while sum(stop.code != 0 for stop in stops) < count and len(stops) < 4 * count:
        stops.append(run(("run", *words, QUESTION), Path.cwd(), START + random_.uniform(0, longest), environment))
        if not stops[-1].code:
            longest = min(longest, stops[-1].seconds)
        progress(stops[-1])
    return stops


def chat(path: str, count: int) -> Iterator[tuple[str, str]]:
    """Answers of chats on a terminal, and their load and compilation, which Ctrl-C ends."""
    words = (path, "--max-tokens", str(TOKENS), "--context", str(CONTEXT))
    greedy, drawn = (*words, "--temperature", "0"), (*words, "--temperature", "1", "--seed", "3")
    loads, compiling = count // 10, count // 20
    first = (count - loads - compiling + 1) // 2
    cut, wrong = answers_of_chat(greedy, first, 1)
    sampled, wrong_drawn = answers_of_chat(drawn, count - loads - compiling - first, 2)
    stops = loads_of_chat(greedy, loads, "")
    with tempfile.TemporaryDirectory() as cache:
        compiled = loads_of_chat(greedy, compiling, cache)
        talk = Chat(*greedy, environment={"RUNG_CACHE": cache})
        answer = talk.ask(QUESTION)
        talk.close()
    talk = Chat(*greedy)
    wrong += (talk.ask(QUESTION) != answer) + (talk.close() != 0) + wrong_drawn
    bad = [stop for stop in stops + compiled if not stop.good]
    cut.update({f"{where}, sampling": times for where, times in sampled.items()})
    cut.update(load=sum(stop.code != 0 for stop in stops), compile=sum(stop.code != 0 for stop in compiled))
    yield "interrupted in", ", ".join(f"{name} {times}" for name, times in cut.items()) + f" = {cut.total()}"
    yield "wrong", str(wrong + len(bad)) + "".join(f"\n    {stop}" for stop in bad)
    yield from to_the_end([stop.seconds for stop in stops + compiled if stop.code])


def to_the_end(seconds: Sequence[float]) -> Iterator[tuple[str, str]]:
    """How long processes lived after Ctrl-C."""
    if seconds:
        late = sum(each > BAR for each in seconds)
        text = f"median {statistics.median(seconds):.2f}, most {max(seconds):.2f}, above {BAR:g}: {late}"
        yield "seconds to the end", text


def _short(outcome: Outcome) -> str:
    last = outcome.stops[-1]
    ended = f"{last.code} {last.seconds:.2f} s after Ctrl-C at {last.at:.2f} s"
    return f"{outcome.stopped} of {len(outcome.stops)} stopped, wrong {outcome.wrong}; the last ended with {ended}"


def command(name: str, count: int) -> Iterator[tuple[str, str]]:
    """A command that writes, stopped again and again, then let to its end."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = stop_again_and_again(name, Path(folder), count, progress=lambda so_far: progress(_short(so_far)))
    ended = [stop.seconds for stop in outcome.stops if stop.code]
    yield "stopped", f"{len(ended)} of {len(outcome.stops)}; others were done before"
    yield "wrong", str(len(outcome.wrong)) + "".join(f"\n    {each}" for each in outcome.wrong)
    yield from to_the_end(ended)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("parts", nargs="*", default=["library", "torch", "chat", "commands"])
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
        "library": lambda: library(options.model, options.count, False),
        "torch": lambda: library(options.model, options.count, True),
        "chat": lambda: chat(options.model, options.count),
    }
    parts |= {name: lambda name=name: command(name, options.count // 4) for name in WORKS}  # type: ignore[misc]
    names = [name for part in options.parts for name in (WORKS if part == "commands" else [part])]
    bad = False
    for name in names:
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
