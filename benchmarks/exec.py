"""Measure what ``rung exec`` costs a program without torch, and steps of training that nothing refuses.

    python benchmarks/exec.py [--turns 15] [--rounds 9]

The first is the processor time (user and system, of all processes) of a Python that does nothing, with and without.
The second is the processor time of a training step, plain and watched as ``rung exec`` watches it, in alternation in
one process, the best of the rounds: products of 32x32, where the cost of an operation is highest, and two small Llamas.
Products are watched only where a GPU may be; what that costs a processor is printed beside it.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile

BAR_MS, BAR_RATIO = 50, 1.1
STEP = """
import sys, time, torch
torch.set_num_threads(1)
torch.manual_seed(0)

def steps(size):
    if size:
        from transformers import LlamaConfig, LlamaForCausalLM
        model = LlamaForCausalLM(LlamaConfig(vocab_size=512, hidden_size=size, intermediate_size=3 * size,
                                 num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4))
        ids = torch.randint(0, 512, (1, 64))
        loss = lambda: model(ids, labels=ids).loss
    else:
        model = torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(32, 32), torch.nn.ReLU())])
        x = torch.randn(32, 32)
        loss = lambda: model(x).square().mean()
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step

def seconds(step, count):
    began = time.thread_time()
    for _ in range(count):
        step()
    return (time.thread_time() - began) / count

from rung.exec import step_down
from rung.exec.report import Notes
from rung.exec.step_down import Steps
watched = Steps(Notes(sys.argv[1]))
for name, size, count in (("tiny", 0, 100), ("llama-64", 64, 10), ("llama-256", 256, 3)):
    step = steps(size)
    seconds(step, count)
    found = {"plain": [], "here": [], "gpu": []}
    for turn in range(int(sys.argv[2])):
        for way, times in found.items():
            if way != "plain":
                names = step_down.LIBRARIES if way == "gpu" or step_down.gpu() else ()
                step_down.operations(watched, (*step_down.FUNCTIONS, *names))
            seconds(step, 1)
            times.append(seconds(step, count))
            if way != "plain":
                step_down._libraries.pop()._destroy()
    print(name, *(1e6 * min(times) for times in found.values()))
"""


def spent(command: list[str]) -> float:
    """Milliseconds of processor time of a command and its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    """Prints both bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    program = [sys.executable, "-c", "pass"]
    launcher = os.path.join(os.path.dirname(sys.executable), "rung")
    helped = [launcher, "exec", "--", *program]
    turns = [(spent(program), spent(helped)) for _ in range(options.turns + 1)][1:]
    cost = statistics.median(b - a for a, b in turns)
    print(
        f"without torch: {cost:.1f} ms more, of them {statistics.median(a for a, _ in turns):.1f} are a Python's start"
    )
    print(f"  < {BAR_MS} ms: {'yes' if cost < BAR_MS else 'no'}\n")
    print(
        "| a step of training | us | under rung exec | ratio | < 1.1 | products watched too, as beside a GPU | ratio |"
    )
    print("|---|---|---|---|---|---|---|")
    with tempfile.NamedTemporaryFile() as notes:
        done = subprocess.run(
            [sys.executable, "-c", STEP, notes.name, str(options.rounds)], capture_output=True, text=True, check=True
        )
    for line in done.stdout.splitlines():
        name, *times = line.split()
        plain, here, gpu = map(float, times)
        met = "yes" if here / plain < BAR_RATIO else "no"
        print(f"| {name} | {plain:.0f} | {here:.0f} | {here / plain:.3f} | {met} | {gpu:.0f} | {gpu / plain:.3f} |")


if __name__ == "__main__":
    main()
