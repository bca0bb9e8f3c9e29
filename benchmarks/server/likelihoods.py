"""lm-eval's ``local-completions`` on ``rung serve``, beside transformers on the same weights in float32.

    python -m benchmarks.server.likelihoods --python PYTHON [--count 200] [--seed 0] [--only-quantized]

PYTHON is an interpreter that has lm-eval (``pip install 'lm_eval[api]'``) and transformers. A tiny model of random
weights is served in f32 with a cache in f32; lm-eval asks for the log-likelihood of texts after others. Prints how far
these lie from transformers', and whether both say the same of greedy tokens.

Then lm-eval runs three whole tasks, of a file each, with the server and with transformers (its model ``hf``): questions
with several answers, last words, and texts as they are (perplexity). All log-likelihoods and all scores are compared.

The same weights are then written as a file of q4_0, which is served as a person serves it. lm-eval asks for the same
log-likelihoods, which are compared with those of ``model.logits``. ``--only-quantized`` does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from benchmarks.server import parts

#: How far a log-likelihood may lie from that of transformers.
_BAR = 1e-4
_WORDS = ("the", "model", "number", "runs", "on", "a", "device", "with", "things", "and", "more", "words", "7", "42")
#: Runs in PYTHON, with the address, the folder of the tokenizer and the pairs of texts.
_ASK = """
import json, sys
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
url, folder, pairs = sys.argv[1], sys.argv[2], json.loads(sys.stdin.read())
model = LocalCompletionsAPI(
    base_url=url + "/v1/completions", model=folder, tokenizer=folder, tokenizer_backend="huggingface",
    num_concurrent=4, max_length=128,
)
requests = [Instance("loglikelihood", {}, tuple(pair), number) for number, pair in enumerate(pairs)]
print("found " + json.dumps(model.loglikelihood(requests)))
"""
#: The tasks: a question's answers, what comes last, and whole texts, with what they are scored by.
_TASKS = {
    "choices": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "last": """
output_type: loglikelihood
doc_to_text: "{{question}}"
doc_to_target: " {{choices[label]}}"
metric_list: [{metric: perplexity, aggregation: perplexity}, {metric: acc}]
""",
    "texts": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}} {{choices[label]}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
}
#: Runs in PYTHON, with the address, the folder of the model and that of the tasks.
_RUN_TASKS = """
import json, sys
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
url, folder, tasks = sys.argv[1:]
served = dict(base_url=url + "/v1/completions", model=folder, tokenizer=folder, tokenizer_backend="huggingface",
              num_concurrent=4, max_length=128)
local = dict(pretrained=folder, dtype="float32", device="cpu", max_length=128)
found = {}
for model, arguments in {"local-completions": served, "hf": local}.items():
    run = simple_evaluate(model=model, model_args=arguments, tasks=["choices", "last", "texts"], bootstrap_iters=0,
                          task_manager=TaskManager(include_path=tasks, include_defaults=False), batch_size=1)
    samples = {name: [each["resps"] for each in several] for name, several in run["samples"].items()}
    scores = {name: {key: value for key, value in each.items() if isinstance(value, float)}
              for name, each in run["results"].items()}
    found[model] = {"samples": samples, "scores": scores}
print("found " + json.dumps(found))
"""


def pairs_of(count: int, seed: int) -> list[tuple[str, str]]:
    """Return texts, and what follows each."""
    draw = random.Random(seed)
    return [
        (
            " ".join(draw.choices(_WORDS, k=draw.randint(1, 12))),
            "".join(f" {each}" for each in draw.choices(_WORDS, k=3)),
        )
        for _ in range(count)
    ]


def expected(
    logits_of: Callable[[list[int]], npt.ArrayLike], folder: Path, pairs: list[tuple[str, str]]
) -> list[tuple[float, bool]]:
    """Return the log-likelihoods by the logits of a model, of the tokens that lm-eval counts, and whether all are
    greedy."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for before, after in pairs:
        ids = tokenizer(before + after, add_special_tokens=False).input_ids
        first = len(tokenizer(before, add_special_tokens=False).input_ids)
        logits = np.asarray(logits_of(ids), np.float64)[first - 1 : -1]
        scores = logits - logits.max(1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(1, keepdims=True))
        chosen = np.take_along_axis(scores, np.asarray(ids[first:])[:, None], 1)[:, 0]
        found.append((float(chosen.sum()), bool((chosen == scores.max(1)).all())))
    return found


def logits_by_transformers(model: Any) -> Callable[[list[int]], npt.ArrayLike]:
    """Return a function from token ids to their logits."""
    import torch

    def logits(ids: list[int]) -> npt.ArrayLike:
        with torch.inference_mode():
            found: npt.ArrayLike = model(torch.tensor([ids])).logits[0].numpy()
        return found

    return logits


def compare(name: str, ours: Any, theirs: list[tuple[float, bool]], findings: parts.Findings) -> None:
    """Compare log-likelihoods that lm-eval got of the server with those that are expected."""
    far = 0.0
    for number, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
        far = max(far, abs(mine[0] - its[0]))
        findings.count(f"{name}, log-likelihoods")
        findings.count(f"{name}, greedy ones", its[1])
        findings.expect(abs(mine[0] - its[0]) <= _BAR, f"{name}, pair {number}: {mine[0]} and {its[0]}")
        findings.expect(mine[1] == its[1], f"{name}, pair {number}: greedy {mine[1]} and {its[1]}")
    findings.count(f"{name}, largest difference", far)


def compare_quantized(python: str, folder: Path, pairs: list[tuple[str, str]], findings: parts.Findings) -> None:
    """Write the weights of a folder as q4_0, and compare what the server of that file says with ``model.logits``."""
    from rung.engine.load import load

    file = folder.parent / "tiny-q4_0.gguf"
    command = [sys.executable, "-m", "rung", "quantize", str(folder), str(file), "--format", "q4_0"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with parts.serving(str(file), "--alias", str(folder), "--context", "128", "--parallel", "4") as server:
        found = run_elsewhere(python, _ASK, f"http://127.0.0.1:{server.port}", str(folder), text=json.dumps(pairs))
    compare("q4_0", found, expected(load(str(file), context=128).logits, folder, pairs), findings)


def write_tasks(folder: Path, count: int, seed: int) -> None:
    """Write the tasks, and so many questions for each."""
    draw, texts = random.Random(seed), pairs_of(count, seed)
    folder.mkdir()
    lines = []
    for question, right in texts:
        choices = [right.strip(), *(" ".join(draw.choices(_WORDS, k=draw.randint(1, 4))) for _ in range(3))]
        draw.shuffle(choices)
        lines.append(json.dumps({"question": question, "choices": choices, "label": choices.index(right.strip())}))
    (folder / "questions.jsonl").write_text("\n".join(lines))
    files = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder / 'questions.jsonl'}}}}}\n"
    for name, text in _TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{files}test_split: test{text}")


def numbers_of(value: Any) -> list[float]:
    """Return the numbers of nested lists, in their order; what is greedy is 1 or 0."""
    return [float(value)] if not isinstance(value, list) else [each for part in value for each in numbers_of(part)]


def compare_tasks(found: dict[str, Any], findings: parts.Findings) -> None:
    """Compare what lm-eval got of the server and of transformers."""
    ours, theirs = found["local-completions"], found["hf"]
    for name in _TASKS:
        numbers = [numbers_of(each["samples"][name]) for each in (ours, theirs)]
        far = max(abs(a - b) for a, b in zip(*numbers, strict=True))
        findings.count(f"task {name}, numbers", len(numbers[0]))
        findings.count(f"task {name}, largest difference", far)
        findings.expect(far <= _BAR, f"task {name}: a log-likelihood is {far} away")
        for score, value in theirs["scores"][name].items():
            findings.count(f"task {name}, {score}", value)
            near = abs(ours["scores"][name][score] - value) <= _BAR * max(1.0, abs(value))
            findings.expect(near, f"task {name}, {score}: {ours['scores'][name][score]} and {value}")


def run_elsewhere(python: str, script: str, *arguments: str, text: str = "") -> Any:
    """Run a script in another Python and return its findings."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    command, environment = [python, "-c", script, *arguments], {**os.environ, **offline}
    environment.pop("PYTHONPATH", None)
    run = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(next(line for line in run.stdout.splitlines() if line.startswith("found "))[6:])


def compare_whole(arguments: argparse.Namespace, folder: Path, model: Any, findings: parts.Findings) -> None:
    """Compare what the server says in float32, and three tasks, with transformers."""
    pairs = pairs_of(arguments.count, arguments.seed)
    write_tasks(folder.parent / "tasks", arguments.count, arguments.seed)
    options = ("--format", "f32", "--cache-type", "f32", "--context", "128", "--parallel", "4")
    with parts.serving(str(folder), *options) as server:
        address = f"http://127.0.0.1:{server.port}"
        found = run_elsewhere(arguments.python, _ASK, address, str(folder), text=json.dumps(pairs))
        tasks = run_elsewhere(arguments.python, _RUN_TASKS, address, str(folder), f"{folder.parent}/tasks")
        compare_tasks(tasks, findings)
    compare("f32", found, expected(logits_by_transformers(model), folder, pairs), findings)


def main() -> int:
    """Compare and print."""
    from tests import tiny

    parser = parts.arguments(__doc__, 200)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only-quantized", action="store_true")
    arguments = parser.parse_args()
    findings = parts.Findings()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tiny"
        folder.mkdir()
        model = tiny.tiny_checkpoint(folder, "llama").eval()
        tiny.gguf_vocabulary(folder)
        if not arguments.only_quantized:
            compare_whole(arguments, folder, model, findings)
        compare_quantized(arguments.python, folder, pairs_of(arguments.count, arguments.seed), findings)
    return findings.show()


if __name__ == "__main__":
    sys.exit(main())
