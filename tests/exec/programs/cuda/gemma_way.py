"""A language model the way gemma_pytorch calls torch: a default dtype, caches, complex rotation, sampling on a GPU."""

import contextlib

import torch
from torch import nn
from torch.nn import functional

VOCAB, HIDDEN, HEADS, HEAD, LAYERS, LENGTH = 96, 64, 4, 16, 2, 24


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(HIDDEN))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight.float())).type_as(x)


def rotated(x, turns):
    pairs = torch.view_as_complex(torch.stack(torch.chunk(x.transpose(1, 2).float(), 2, dim=-1), dim=-1))
    turned = torch.view_as_real(pairs * turns).type_as(x)
    return torch.cat(torch.chunk(turned, 2, dim=-1), dim=-2).flatten(-2).transpose(1, 2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = RMSNorm(), RMSNorm()
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2) * HEAD, bias=False)
        self.o = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)
        self.gate, self.up, self.down = (nn.Linear(*size, bias=False) for size in ((64, 128), (64, 128), (128, 64)))

    def forward(self, x, turns, at, cache, mask):
        q, k, v = self.qkv(self.before(x)).split([HEADS * HEAD, HEAD, HEAD], dim=-1)
        q, k, v = q.view(1, -1, HEADS, HEAD), k.view(1, -1, 1, HEAD), v.view(1, -1, 1, HEAD)
        q, k = rotated(q, turns), rotated(k, turns)
        cache[0].index_copy_(1, at, k)
        cache[1].index_copy_(1, at, v)
        keys, values = (each.repeat_interleave(HEADS, 2).transpose(1, 2) for each in cache)
        scores = torch.matmul(q.transpose(1, 2), keys.transpose(2, 3)) * HEAD**-0.5 + mask
        mixed = torch.matmul(functional.softmax(scores.float(), dim=-1).type_as(q), values)
        x = x + self.o(mixed.transpose(1, 2).reshape(1, -1, HEADS * HEAD))
        y = self.after(x)
        return x + self.down(functional.gelu(self.gate(y), approximate="tanh") * self.up(y))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedder = nn.Embedding(VOCAB, HIDDEN)
        self.layers, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), RMSNorm()
        angles = torch.outer(torch.arange(LENGTH), 10_000 ** (-torch.arange(0, HEAD, 2).float() / HEAD)).float()
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, tokens, at, caches, mask, temperature, top_p, top_k):
        x = self.embedder(tokens) * torch.tensor(HIDDEN**0.5, dtype=self.embedder.weight.dtype, device=tokens.device)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, self.turns.index_select(0, at), at, cache, mask.index_select(2, at))
        logits = torch.matmul(self.norm(x)[:, -1], self.embedder.weight.t()).div_(temperature.unsqueeze(1))
        chances, order = torch.sort(torch.softmax(logits, dim=-1, dtype=torch.float), dim=-1, descending=True)
        over = (chances.cumsum(-1) - chances) > top_p.unsqueeze(1)
        chances = torch.where(over | (torch.arange(VOCAB, device=over.device) >= top_k[:, None]), 0, chances)
        chances = torch.gather(chances / chances.sum(-1, keepdim=True), -1, torch.argsort(order, dim=-1))
        return torch.multinomial(chances, 1, replacement=True).squeeze(-1), logits


torch.manual_seed(7)
device = torch.device("cuda")
with default_dtype(torch.bfloat16):
    model = Model()
    model = model.to(device).eval()
assert model.turns.dtype is torch.complex64
shape = (1, LENGTH, 1, HEAD)
caches = [tuple(torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in "kv") for _ in range(LAYERS)]
mask = torch.triu(torch.full((1, 1, LENGTH, LENGTH), -2.3819763e38), diagonal=1).to(torch.float).to(device)
tokens = torch.tensor([[2, 7, 11]]).to(device)
at = torch.arange(3, dtype=torch.int64).to(device)
settings = [
    torch.FloatTensor([0.9]).to(device),
    torch.FloatTensor([0.95]).to(device),
    torch.LongTensor([40]).to(device),
]
found = []
with torch.no_grad():
    while len(found) < 8:
        chosen, logits = model(tokens, at, caches, mask, *settings)
        found.append(chosen.item())
        tokens, at = chosen[None], at[-1:] + 1
print(found, logits.dtype, logits.device)
print(logits[0, :6].tolist())
