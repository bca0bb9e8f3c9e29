"""Small measurements through the public interface of rung; ``measure.py`` runs each in a fresh process of two commits.

    python benchmarks/measured.py TASK [ARGUMENT]

Prints one JSON object: figures by name. The old commit runs this file too: import only names that docs/ names, and
what imports nothing of rung.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fixtures"))

#: Fixtures whose divergence comes from quantized arithmetic, so that a change of the kernels shows in it.
PARITY = ("llama-q4_k_m", "llama-q8_0", "gemma2-q4_0", "gemma2-q6_k", "llama-iq4_xs")
UNREAD = Path(__file__).parent.parent / "tests" / "data" / "unread.jsonl"
TOKENS = 384

Figures = dict[str, float]


def fastest_ms(call: Callable[[], Any], calls: int) -> float:
    """Return milliseconds of the fastest of so many calls; two more come first, to compile and to fill caches."""
    taken = []
    for number in range(calls + 2):
        start = time.perf_counter()
        call()
        if number >= 2:
            taken.append(1e3 * (time.perf_counter() - start))
    return min(taken)


def bitsandbytes(_: str) -> Figures:
    """Time matrix products of bitsandbytes' operators on rung's kernels, 2048 x 2048."""
    import bitsandbytes as bnb
    import torch

    from rung.hub.bitsandbytes import install

    install()
    torch.manual_seed(0)
    weight = torch.randn(2048, 2048)
    codes, state = bnb.functional.quantize_4bit(weight, quant_type="nf4")
    whole, _, _ = bnb.functional.int8_vectorwise_quant(weight.half())
    found = {}
    for rows in (1, 64):
        x = torch.randn(rows, 2048)
        found[f"bnb nf4 product, {rows} rows"] = fastest_ms(lambda x=x: bnb.matmul_4bit(x, codes.t(), state), 30)
    x, _, _ = bnb.functional.int8_vectorwise_quant(torch.randn(64, 2048).half())
    found["bnb int8 product, 64 rows"] = fastest_ms(lambda: torch.ops.bitsandbytes.int8_linear_matmul(x, whole), 30)
    found["bnb encode nf4"] = fastest_ms(lambda: bnb.functional.quantize_4bit(weight, quant_type="nf4"), 10)
    return found


def adam(_: str) -> Figures:
    """Time a step of AdamW with 8-bit state on 4 million parameters."""
    import torch

    from rung.training.optim import AdamW8bit

    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(2048, 2048))
    parameter.grad = torch.randn(2048, 2048)
    return {"AdamW8bit step": fastest_ms(AdamW8bit([parameter], lr=1e-3).step, 20)}


def splats(_: str) -> Figures:
    """Time a picture of 20,000 splats and its gradients."""
    import torch

    from rung.splats import rasterization

    torch.manual_seed(0)
    parts = [
        torch.randn(20_000, 3) * 0.6 + torch.tensor([0.0, 0.0, 3.5]),
        torch.randn(20_000, 4),
        torch.rand(20_000, 3) * 0.02 + 0.005,
        torch.rand(20_000) * 0.8 + 0.1,
        torch.randn(20_000, 16, 3) * 0.3,
    ]
    parameters = [part.requires_grad_() for part in parts]
    camera = torch.tensor([[[230.0, 0, 128], [0, 230, 128], [0, 0, 1]]])

    def step() -> None:
        for part in parameters:
            part.grad = None
        picture, _, _ = rasterization(*parameters, torch.eye(4)[None], camera, 256, 256, sh_degree=3)
        picture.square().mean().backward()

    return {"splats picture and gradients": fastest_ms(step, 8)}


def parity(_: str) -> Figures:
    """Compute how far the logits of small quantized files are from transformers' on the decoded weights."""
    import references

    import rung

    found = {}
    for name in PARITY:
        fixture = references.fixture(name)
        ids, expected = fixture.reference()
        logits = rung.load(str(fixture.path), device="cpu", context=fixture.context).logits(ids.tolist())
        found[f"KL {name}"] = references.agreement(expected, logits.numpy()).divergence
    return found


def parity_real(file: str) -> Figures:
    """Compute the same on prose with a real model."""
    import references

    import real_models
    import rung

    model = rung.load(file, device="cpu", context=512)
    ids = real_models.np.array(model.tokenizer.encode(real_models.TEXT.read_text(encoding="utf-8"))[:TOKENS])
    logits = model.logits(ids.tolist()).numpy()
    expected = real_models.reference(Path(file), ids)
    return {"KL SmolLM2": references.agreement(expected, logits).divergence}


def unread(_: str) -> Figures:
    """Count right causes and fixes of threads that the shipped tables did not learn from."""
    import rung

    rows = [json.loads(line) for line in UNREAD.read_text(encoding="utf-8").splitlines()]
    answers = [rung.explain(row["log"], row["environment"]).to_json() for row in rows]
    causes = [answer["cause"] == row["cause"] for row, answer in zip(rows, answers, strict=True)]
    fixes = [
        any(fix["label"] in row["fixes"] for fix in answer["fixes"][:2])
        for row, answer in zip(rows, answers, strict=True)
    ]
    named = "explain, threads not learned from: "
    return {f"{named}cause": 100 * sum(causes) / len(rows), f"{named}fix": 100 * sum(fixes) / len(rows)}


TASKS = {
    "bitsandbytes": bitsandbytes,
    "adam": adam,
    "splats": splats,
    "parity": parity,
    "parity-real": parity_real,
    "unread": unread,
}


if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "")))
