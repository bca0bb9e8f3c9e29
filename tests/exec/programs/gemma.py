"""A layer of Gemma in bfloat16, as the PyTorch port of its makers computes it, greedy for four tokens."""

import sys

import torch
from torch.nn import functional

HIDDEN, HEADS, HEAD, MLP, VOCAB = 64, 4, 16, 128, 96
device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
torch.manual_seed(0)


def weight(rows, columns):
    return (torch.randn(rows, columns) / columns**0.5).to(torch.bfloat16).to(device)


embedder = weight(VOCAB, HIDDEN)
qkv, output = weight((HEADS + 2) * HEAD, HIDDEN), weight(HIDDEN, HEADS * HEAD)
gate, up, down = weight(MLP, HIDDEN), weight(MLP, HIDDEN), weight(HIDDEN, MLP)


def norm(x):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)


def rotated(x):
    half = HEAD // 2
    angles = torch.outer(torch.arange(x.shape[-2]).float(), 10_000 ** (-torch.arange(half).float() / half)).to(device)
    a, b = x.float().split(half, dim=-1)
    turned = torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)
    return turned.type_as(x)


@torch.no_grad()
def logits(ids):
    x = functional.embedding(ids, embedder) * HIDDEN**0.5
    y = norm(x)
    q, k, v = functional.linear(y, qkv).split([HEADS * HEAD, HEAD, HEAD], dim=-1)
    q = rotated(q.view(-1, HEADS, HEAD).transpose(0, 1))
    k, v = rotated(k[None]).expand(HEADS, -1, -1), v[None].expand(HEADS, -1, -1)
    scores = torch.matmul(q, k.transpose(1, 2)) * HEAD**-0.5
    mask = torch.full((len(ids), len(ids)), float("-inf"), device=device).triu(1)
    mixed = torch.matmul(functional.softmax((scores + mask).float(), dim=-1).type_as(q), v)
    x = x + functional.linear(mixed.transpose(0, 1).reshape(len(ids), -1), output)
    y = norm(x)
    x = x + functional.linear(
        functional.gelu(functional.linear(y, gate), approximate="tanh") * functional.linear(y, up), down
    )
    return torch.matmul(norm(x)[-1:], embedder.t())


ids = torch.tensor([2, 7, 11], device=device)
for _ in range(4):
    found = logits(ids)
    assert found.dtype is torch.bfloat16
    ids = torch.cat((ids, found.argmax(-1)))
print(*[round(value, 2) for value in found[0, :8].tolist()])
