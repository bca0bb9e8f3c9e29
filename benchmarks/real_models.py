"""How near the logits of real models come to the reference: rung beside llama.cpp on the same file and text.

    python benchmarks/real_models.py FILE.gguf ... [--llama-python PYTHON] [--tokens 384]

The reference is transformers in f32 on the decoded file. PYTHON is an interpreter that imports ``llama_cpp``
(llama-cpp-python); without it only rung is measured. The text is ``tests/data/prose.txt``. The divergence (KL, nats)
is the mean over all positions; perplexity is that of the text. rung is asked twice: the text as one prompt, and token
by token. Exit status 1 if rung's larger divergence is above 1.1 times llama.cpp's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fixtures"))
import references

import rung

TEXT = Path(__file__).parent.parent / "tests" / "data" / "prose.txt"
#: rung's divergence may be this many times llama.cpp's.
BAR = 1.1
PEER = """
import sys, numpy
from llama_cpp import Llama
path, ids, out = sys.argv[1:]
ids = numpy.load(ids).tolist()
model = Llama(model_path=path, n_ctx=len(ids), n_batch=len(ids), n_threads=2, logits_all=True, verbose=False)
model.eval(ids)
numpy.save(out, numpy.array(model.scores[: len(ids)], numpy.float32))
"""


def reference(path: Path, ids: np.ndarray) -> np.ndarray:
    """Return logits [positions, vocabulary] of transformers in f32 on the decoded file."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    with torch.inference_mode():
        found: np.ndarray = model(torch.tensor(ids[None])).logits[0].float().numpy()
    return found


def peer(python: str, path: Path, ids: np.ndarray) -> np.ndarray:
    """Return llama.cpp's logits [positions, vocabulary]."""
    with tempfile.TemporaryDirectory() as folder:
        inputs, out = Path(folder) / "ids.npy", Path(folder) / "logits.npy"
        np.save(inputs, ids)
        subprocess.run([python, "-c", PEER, str(path), str(inputs), str(out)], check=True)
        return np.load(out)


def perplexity(logits: np.ndarray, ids: np.ndarray) -> float:
    """Return the perplexity of ids 1 and on."""
    shifted = logits[:-1].astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    chosen = shifted[np.arange(len(ids) - 1), ids[1:]] - np.log(np.exp(shifted).sum(axis=-1))
    return float(np.exp(-chosen.mean()))


def main() -> None:
    """Print one row a file and program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--llama-python")
    parser.add_argument("--tokens", type=int, default=384)
    arguments = parser.parse_args()
    missed = 0
    print("| file | program | KL to f32 | same choice | perplexity |\n|---|---|---|---|---|")
    for path in arguments.files:
        model = rung.load(str(path), device="cpu", context=512)
        text = TEXT.read_text(encoding="utf-8")
        ids = np.array(model.tokenizer.encode(text, special=True, bos=True)[: arguments.tokens])
        expected = reference(path, ids)
        found = {
            "rung, as a prompt": model.logits(ids.tolist()).numpy(),
            "rung, token by token": references.token_by_token(model, ids),
        }
        if arguments.llama_python:
            found["llama.cpp"] = peer(arguments.llama_python, path, ids)
        agreements = {name: references.agreement(expected, logits) for name, logits in found.items()}
        print(f"| {path.name} | transformers, f32 | | | {perplexity(expected, ids):.3f} |")
        for name, logits in found.items():
            each = agreements[name]
            row = f"{each.divergence:.2e} | {each.same_choice:.1%} | {perplexity(logits, ids):.3f}"
            print(f"| {path.name} | {name} | {row} |", flush=True)
        ours = max(each.divergence for name, each in agreements.items() if name.startswith("rung"))
        if "llama.cpp" in agreements:
            ratio = ours / agreements["llama.cpp"].divergence
            missed += ratio > BAR
            print(f"{path.name}: rung / llama.cpp {ratio:.2f}, bar {BAR}", file=sys.stderr)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
