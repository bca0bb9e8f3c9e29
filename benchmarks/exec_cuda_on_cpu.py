"""Measure the cost of ``rung exec --device cpu``, in turns with the same program with ``cpu`` written for ``cuda``.

    python benchmarks/exec_cuda_on_cpu.py [--rounds 3]

Each round starts both programs anew and takes the processor time of their best steps, on one thread, so that a busy
machine counts for little; the ratio is that of the best rounds. Steps:
a training step of a Llama of 2.6 M parameters in f32 and under bfloat16 autocast with AdamW, one of a convolutional
network with a GradScaler and batches from the host, and a token of a Llama of 24 layers, which is many small
operations. The bar is 1.15 for steps of 20 ms and more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BAR = 1.15
#: glibc keeps what is freed: else either way has more or fewer page faults by chance, up to a fifth of a step.
KEEPING = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": "67108864",
}
PROGRAM = """
import json, sys, time, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
torch.set_num_threads(1)
device = torch.device("cuda")


def llama(width, layers):
    return LlamaForCausalLM(LlamaConfig(vocab_size=1000, hidden_size=width, intermediate_size=8 * width // 3,
                            num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=4)).to(device)


def training(autocast):
    model, ids = llama(192, 6), torch.randint(0, 1000, (2, 64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()
    return step


def pictures():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
                              torch.nn.Conv2d(32, 32, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                              torch.nn.Linear(32 * 28 * 28, 10)).to(device)
    optimizer, scaler = torch.optim.SGD(net.parameters(), 1e-3), torch.amp.GradScaler("cuda")
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    def step():
        loss = torch.nn.functional.cross_entropy(net((images - images.mean()).to(device)), labels.to(device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.item()
    return step


def token():
    model, ids = llama(256, 24).eval(), torch.randint(0, 1000, (1, 16)).to(device)
    with torch.no_grad():
        cache = model(input_ids=ids, use_cache=True).past_key_values
    @torch.no_grad()
    def step():
        made = model(input_ids=ids[:, -1:], past_key_values=cache, use_cache=True)
        cache.crop(-1)
        return made.logits[0, -1, 0].item()
    return step


found = {}
for name, step in (("training", training(False)), ("autocast", training(True)), ("pictures", pictures()),
                   ("token", token())):
    values, times = [step() for _ in range(3)], []
    for _ in range(15):
        began = time.thread_time()
        step()
        times.append(time.thread_time() - began)
    found[name] = (min(times), values)
json.dump(found, open(sys.argv[1], "w"))
"""


def timed(command: list[str], text: str, folder: Path) -> dict[str, tuple[float, list[float]]]:
    """Seconds of the best step and its first values, by the name of the step."""
    program, out = folder / "program.py", folder / "times.json"
    program.write_text(text)
    environment = {**os.environ, **KEEPING}
    subprocess.run([*command, sys.executable, str(program), str(out)], check=True, env=environment, capture_output=True)
    return json.loads(out.read_text())


def main() -> None:
    """Prints a row a step, and says whether the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    plain, mine = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            plain.append(timed([], PROGRAM.replace('"cuda"', '"cpu"'), Path(folder)))
            command = [sys.executable, "-m", "rung", "exec", "--device", "cpu", "--"]
            mine.append(timed(command, PROGRAM, Path(folder)))
    print(f"| step | cpu written, ms | rung exec --device cpu, ms | ratio, at most {BAR} | same values |")
    print("|---|---|---|---|---|")
    for name in plain[0]:
        one, other = (1e3 * min(each[name][0] for each in found) for found in (plain, mine))
        same = "yes" if plain[0][name][1] == mine[0][name][1] else "NO"
        print(f"| {name} | {one:.1f} | {other:.1f} | {other / one:.2f} | {same} |")


if __name__ == "__main__":
    main()
