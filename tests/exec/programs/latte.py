"""A T5 encoder layer with weights in four bits, decoded to f16 for each product: Latte's text encoder."""

import sys

import torch

WIDTH, HEADS, TOKENS = 64, 4, 6
device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
torch.manual_seed(1)
levels = torch.linspace(-1, 1, 16).to(device)


class Linear4bit(torch.nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        blocks = (torch.randn(outside, inside) / inside**0.5).view(-1, 64)
        scale = blocks.abs().amax(1, keepdim=True)
        codes = ((blocks / scale + 1) * 7.5).round().to(torch.uint8)
        self.register_buffer("codes", codes.to(device))
        self.register_buffer("scale", scale.half().to(device))
        self.shape = outside, inside

    def forward(self, x):
        decoded = (levels[self.codes.long()].half() * self.scale).view(self.shape)
        return torch.nn.functional.linear(x.half(), decoded)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (Linear4bit(WIDTH, WIDTH) for _ in range(4))
        self.wi, self.wo = Linear4bit(WIDTH, 2 * WIDTH), Linear4bit(2 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (f(x).view(1, TOKENS, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = torch.matmul(torch.softmax(torch.matmul(q, k.transpose(3, 2)).float(), -1).half(), v)
        x = x + self.o(mixed.transpose(1, 2).reshape(1, TOKENS, WIDTH))
        return x + self.wo(torch.relu(self.wi(x)))


with torch.inference_mode():
    states = Layer()(torch.randn(1, TOKENS, WIDTH).half().to(device))
assert states.dtype is torch.float16
print(*[round(value, 2) for value in states[0, -1, :8].tolist()])
