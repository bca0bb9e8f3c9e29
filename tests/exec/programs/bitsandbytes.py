"""A LoRA merged into int8 weights, which are brought back by multiplying the identity by them in int8."""

import sys

import torch

device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
torch.manual_seed(2)
base = torch.randn(64, 64) / 8
lora_a, lora_b = torch.randn(8, 64).to(device) / 8, torch.randn(64, 8).to(device) / 8
scale = (base.abs().amax(1, keepdim=True) / 127).to(device)
codes = (base.to(device) / scale).round().to(torch.int8)

identity = 127 * torch.eye(64, dtype=torch.int8, device=device)
products = torch._int_mm(identity, codes.t().contiguous())
assert products.dtype is torch.int32
merged = products.t() * scale / 127 + lora_b @ lora_a
again = merged.abs().amax(1, keepdim=True) / 127
stored = (merged / again).round().to(torch.int8)
print(*[round(value, 2) for value in (stored[0, :8] * again[0]).tolist()])
