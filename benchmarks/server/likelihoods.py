"""lm-eval's ``local-completions`` on ``rung serve``, beside transformers on the same weights in float32.

    python -m benchmarks.server.likelihoods --python PYTHON [--count 200] [--seed 0]

PYTHON is an interpreter that has lm-eval (``pip install 'lm_eval[api]'``) and transformers. A tiny model of random
weights is served in f32 with a cache in f32; lm-eval asks for the log-likelihood of texts after others, as its tasks
do. Prints how far these lie from transformers', and whether both say the same of greedy tokens.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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
asked = [Instance("loglikelihood", {}, tuple(pair), number) for number, pair in enumerate(pairs)]
print("found " + json.dumps(model.loglikelihood(asked)))
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


def expected(model: Any, folder: Path, pairs: list[tuple[str, str]]) -> list[tuple[float, bool]]:
    """Return the log-likelihoods by transformers, of the tokens that lm-eval counts, and whether all are greedy."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for before, after in pairs:
        ids = tokenizer(before + after, add_special_tokens=False).input_ids
        first = len(tokenizer(before, add_special_tokens=False).input_ids)
        with torch.inference_mode():
            scores = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)[first - 1 : -1]
        chosen = scores.gather(1, torch.tensor(ids[first:])[:, None])[:, 0]
        found.append((float(chosen.sum()), bool((chosen == scores.amax(1)).all())))
    return found


def main() -> int:
    """Compare and print."""
    from tests import tiny

    parser = parts.arguments(__doc__, 200)
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    pairs, findings = pairs_of(given.count, given.seed), parts.Findings()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tiny"
        folder.mkdir()
        model = tiny.tiny_checkpoint(folder, "llama").eval()
        tiny.gguf_vocabulary(folder)
        options = ("--format", "f32", "--cache-type", "f32", "--context", "128", "--parallel", "4")
        with parts.serving(str(folder), *options) as server:
            command = [given.python, "-c", _ASK, f"http://127.0.0.1:{server.port}", str(folder)]
            run = subprocess.run(command, input=json.dumps(pairs), stdout=subprocess.PIPE, text=True, check=True)
        line = next(line for line in run.stdout.splitlines() if line.startswith("found "))
        far = 0.0
        for pair, ours, theirs in zip(pairs, json.loads(line[6:]), expected(model, folder, pairs), strict=True):
            far = max(far, abs(ours[0] - theirs[0]))
            findings.count("log-likelihoods")
            findings.count("greedy ones", theirs[1])
            findings.expect(abs(ours[0] - theirs[0]) <= _BAR, f"{pair}: {ours[0]} and {theirs[0]}")
            findings.expect(ours[1] == theirs[1], f"{pair}: greedy {ours[1]} and {theirs[1]}")
    findings.count("largest difference", far)
    return findings.show()


if __name__ == "__main__":
    sys.exit(main())
