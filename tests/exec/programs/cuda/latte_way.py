"""A video transformer the way Latte calls torch: float16 weights, ``.cuda()``, autocast, classifier-free guidance."""

import torch
from torch import nn
from torch.cuda.amp import autocast

FRAMES, SIZE, WIDTH, HEADS = 4, 8, 64, 4
torch.backends.cuda.matmul.allow_tf32 = True  # GPU only
torch.set_grad_enabled(False)
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(2 * WIDTH, WIDTH))
        self.modulation = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x, condition):
        shift, scale = self.modulation(nn.functional.silu(condition))[:, None].chunk(2, dim=-1)
        y = self.norm(x) * (1 + scale) + shift
        q, k, v = self.qkv(y).view(len(x), -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norm(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(4, WIDTH, 2, stride=2)
        self.steps, self.labels = nn.Linear(32, WIDTH), nn.Embedding(11, WIDTH)
        self.blocks, self.out = nn.ModuleList(Block() for _ in range(4)), nn.Linear(WIDTH, 16)
        self.positions = nn.Parameter(torch.randn(1, (SIZE // 2) ** 2, WIDTH) / 10, requires_grad=False)

    def forward(self, x, t, labels):
        batch, frames = x.shape[:2]
        rates = torch.exp(-torch.arange(16, dtype=torch.float32) / 2).to(device=t.device)
        angles = t[:, None].float() * rates
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1).to(dtype=next(self.parameters()).dtype)
        condition = self.steps(waves) + self.labels(labels)
        y = self.patches(x.flatten(0, 1)).flatten(2).transpose(1, 2) + self.positions
        space, time = condition.repeat_interleave(frames, 0), condition.repeat_interleave(y.shape[1], 0)
        for index, block in enumerate(self.blocks):
            if index % 2:
                y = y.view(batch, frames, -1, WIDTH).transpose(1, 2).flatten(0, 1)
                y = block(y, time).view(batch, -1, frames, WIDTH).transpose(1, 2).flatten(0, 1)
            else:
                y = block(y, space)
        y = self.out(y).view(batch, frames, SIZE // 2, SIZE // 2, 2, 2, 4)
        return y.permute(0, 1, 6, 2, 4, 3, 5).reshape(x.shape)


model = Transformer().to(device).half().eval()
z = torch.randn(1, FRAMES, 4, SIZE, SIZE, dtype=torch.float16, device=device).cuda()
z, labels = torch.cat([z, z], 0), torch.tensor([3, 10], device=device)
for t in (900, 500, 100):
    steps = torch.full((2,), t).cuda()
    with autocast(enabled=True, dtype=torch.float16):
        conditional, free = model(z, steps, labels).chunk(2)
    noise = free + 4.0 * (conditional - free)
    z = z - 0.1 * torch.cat([noise, noise])
torch.cuda.synchronize()
print(z.device, z.dtype, z.is_cuda)
print(z[0, :, 0, 0, 0].float().cpu().numpy().tolist(), z.float().std().item())
