"""Trains the demonstration model: a tokenizer and a Gemma 3 of 5 million weights, in under an hour on two cores.

usage, in the repository's root: python -m training.demo.train [--out build/demo] [--steps 1000]

The schedule counts steps, not minutes: the same seed and versions give the same weights on the same kind of processor,
whatever else the machine does.  Writes OUT/last.pt every 200 steps and OUT/demo.gguf at the end.
Needs torch, transformers, tokenizers, gguf.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.multiprocessing
import torch.nn.functional as F  # noqa: N812
from tokenizers import Tokenizer
from torch import distributed
from training.demo import tokenizer as bpe
from training.demo.cards import load_cards
from training.demo.generate import Dialogue, conversations
from training.demo.muon import Muon
from training.demo.write_gguf import write
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

SEED = 7
VOCABULARY = 2048
ROWS, LENGTH = 8, 256  # of a step: eight rows of 256 tokens, each packed with whole conversations
CONTEXT = 512  # said in the file
PROCESSES = 2  # of one thread each, which share the rows of a step: on a busy machine twice as fast as two threads
STEPS, CONVERSATIONS = 1000, 25_000  # so many steps take four fifths of the text once
QUESTION_WEIGHT = 0.1  # of a question's tokens in the loss; the answer's count 1
MUON_RATE, ADAM_RATE, WARM_UP = 0.02, 3e-3, 60

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def config(vocabulary: int) -> Gemma3TextConfig:
    """The shape: every sixth layer (the last) sees all of the context, the others 128 tokens."""
    return Gemma3TextConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=64,
        query_pre_attn_scalar=64,
        max_position_embeddings=CONTEXT,
        sliding_window=128,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=3,
    )


def encode(turns: list[Dialogue], tokenizer: Tokenizer) -> tuple[list[int], list[float]]:
    """Token ids and loss weights of one conversation; turns that would pass the length of a row are left out."""
    ids: list[int] = []
    weights: list[float] = []
    for turn in turns:
        prompt = tokenizer.encode(bpe.question(turn.question, first=not ids)).ids
        answered = tokenizer.encode(turn.answer + bpe.END).ids
        if len(ids) + len(prompt) + len(answered) > LENGTH:
            break
        ids += prompt + answered
        weights += [QUESTION_WEIGHT] * len(prompt) + [1.0] * len(answered)
    return ids, weights


def pack(talks: list[list[Dialogue]], tokenizer: Tokenizer) -> Batch:
    """First-fit packing into rows of LENGTH tokens: ids, loss weights, conversation numbers (0: padding), positions."""
    done: list[tuple[list[int], list[float], list[int], list[int]]] = []
    filling: list[tuple[list[int], list[float], list[int], list[int]]] = []
    for turns in talks:
        ids, weights = encode(turns, tokenizer)
        row = next((row for row in filling if len(row[0]) + len(ids) <= LENGTH), None)
        if row is None:
            row = ([], [], [], [])
            filling.append(row)
            if len(filling) > 40:
                done.append(filling.pop(0))
        number = (row[2][-1] if row[2] else 0) + 1
        row[0].extend(ids)
        row[1].extend(weights)
        row[2].extend([number] * len(ids))
        row[3].extend(range(len(ids)))
    columns = zip(*((column + [0] * (LENGTH - len(column)) for column in row) for row in done), strict=True)
    ids, weights, numbers, positions = (torch.tensor(column) for column in columns)
    return ids, weights, numbers, positions


def loss_function(model: Gemma3ForCausalLM, window: int) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """(weighted loss, mean loss of the answers' tokens) of a batch; conversations do not see each other."""
    order = torch.arange(LENGTH)
    causal = order[:, None] >= order[None]
    near = causal & (order[:, None] - order[None] < window)

    def loss(ids, weights, numbers, positions):  # type: ignore[no-untyped-def]  # compiled
        same = numbers[:, :, None] == numbers[:, None, :]
        masks = {
            kind: torch.where((same & visible)[:, None], 0.0, -1e9)
            for kind, visible in (("full_attention", causal), ("sliding_attention", near))
        }
        hidden = model.model(input_ids=ids, position_ids=positions, attention_mask=masks, use_cache=False)[0]
        weights = weights[:, 1:] * (numbers[:, 1:] == numbers[:, :-1]) * (numbers[:, 1:] > 0)
        logits = model.lm_head(hidden[:, :-1]).flatten(0, 1)
        losses = F.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none").view(weights.shape)
        answers = (weights == 1).float()
        return (losses * weights).sum() / weights.sum(), (losses * answers).sum() / answers.sum()

    return loss


def batches(data: Batch, rank: int) -> Iterator[Batch]:
    """This process's part of the rows of each step, in random order, epoch after epoch."""
    generator, part = torch.Generator().manual_seed(SEED), ROWS // PROCESSES
    while True:
        for chosen in torch.randperm(len(data[0]), generator=generator).split(ROWS):
            if len(chosen) == ROWS:
                mine = chosen[rank * part : (rank + 1) * part]
                yield tuple(column[mine] for column in data)  # type: ignore[misc]


def optimizers(model: Gemma3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    named = list(model.named_parameters())
    matrices = [weight for name, weight in named if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in named if weight.ndim < 2 or "embed" in name]
    return [
        Muon(matrices, lr=MUON_RATE),
        torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def set_rate(optimizers: list[torch.optim.Optimizer], step: int, steps: int) -> None:
    """Linear warm-up, then a cosine down to 2 %."""
    factor = min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))
    for optimizer, rate in zip(optimizers, (MUON_RATE, ADAM_RATE), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate * factor


def share_gradients(weights: list[torch.Tensor]) -> None:
    """Replace every gradient by its mean over the processes."""
    flat = torch.cat([weight.grad.flatten() for weight in weights if weight.grad is not None])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    for weight, part in zip(weights, flat.split([weight.numel() for weight in weights]), strict=True):
        weight.grad = part.view_as(weight)


def save(model: Gemma3ForCausalLM, tokenizer: Tokenizer, cards: list[str], out: Path, step: int) -> None:
    """The state so far, replacing the one before in one move."""
    state = {"step": step, "model": model.state_dict(), "tokenizer": tokenizer.to_str(), "cards": cards}
    torch.save(state, out / "next.pt")
    (out / "next.pt").replace(out / "last.pt")


def work(rank: int, out: Path, steps: int) -> None:
    """One of the processes: its part of every step's rows, the same weights as the others."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    distributed.init_process_group(
        "gloo", init_method=f"file://{(out / 'meeting').resolve()}", rank=rank, world_size=PROCESSES
    )
    stored = torch.load(out / "data.pt", weights_only=True)
    tokenizer, data, cards = Tokenizer.from_str(stored["tokenizer"]), stored["data"], stored["cards"]
    shape = config(tokenizer.get_vocab_size())
    model = Gemma3ForCausalLM(shape)
    weights = list(model.parameters())
    optimize = optimizers(model)
    loss = torch.compile(loss_function(model, shape.sliding_window), dynamic=False)
    feed, start, mean = batches(data, rank), time.monotonic(), 0.0
    for turn in range(PROCESSES):  # one after the other: the later ones find the compiled code on disk
        if turn == rank:
            loss(*(column[: ROWS // PROCESSES] for column in data))[0].backward()
            model.zero_grad()
        distributed.barrier()
    for step in range(steps):
        set_rate(optimize, step, steps)
        total, answers = loss(*next(feed))
        total.backward()
        share_gradients(weights)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        for optimizer in optimize:
            optimizer.step()
            optimizer.zero_grad()
        mean = answers.item() if step == 0 else 0.95 * mean + 0.05 * answers.item()
        if rank == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}  loss {mean:.4f}  {(time.monotonic() - start) / 60:.1f} min", flush=True)
        if rank == 0 and ((step + 1) % 200 == 0 or step + 1 == steps):
            save(model, tokenizer, cards, out, step + 1)
    if rank == 0:
        write(model, tokenizer, cards, out / "demo.gguf")
    distributed.destroy_process_group()


def train(out: Path, steps: int, count: int) -> None:
    """Make the data of ``count`` conversations, train in two processes, and leave the results in ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "meeting").unlink(missing_ok=True)
    talks = list(conversations(count, SEED))
    tokenizer = bpe.train((text for talk in talks[:20_000] for turn in talk for text in turn[1:3]), VOCABULARY)
    data, cards = pack(talks, tokenizer), sorted(card.mark for card in load_cards())
    torch.save({"tokenizer": tokenizer.to_str(), "data": data, "cards": cards}, out / "data.pt")
    filled = (data[2] > 0).float().mean().item()
    print(f"{len(talks)} conversations, {len(data[0])} rows, {filled:.1%} filled", flush=True)
    torch.multiprocessing.spawn(work, (out, steps), PROCESSES)


def main() -> None:
    """Make the data, train, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    train(options.out, options.steps, CONVERSATIONS)


if __name__ == "__main__":
    main()
