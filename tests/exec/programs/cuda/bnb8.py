"""bitsandbytes: a model of transformers in 8 bits on device 0, and its 8-bit optimizer."""

import tempfile

import bitsandbytes as bnb
import torch
from tests.tiny import tiny_checkpoint
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

with tempfile.TemporaryDirectory() as folder:
    tiny_checkpoint(folder, "llama", dtype="float16")
    model = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=BitsAndBytesConfig(load_in_8bit=True), device_map={"": "cuda"}
    )
layer = model.model.layers[0].mlp.down_proj
print(type(layer).__name__, layer.weight.device, layer.weight.dtype)
ids = torch.tensor([[1, 17, 101, 9]]).cuda()
with torch.no_grad():
    print(model(ids).logits[0, -1, :5].tolist())
torch.manual_seed(0)
net = torch.nn.Linear(256, 64).cuda()
optimizer = bnb.optim.AdamW8bit(net.parameters(), lr=1e-2)
for _ in range(3):
    net(torch.ones(4, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(net.weight.device, net.weight.detach().flatten()[:5].tolist())
