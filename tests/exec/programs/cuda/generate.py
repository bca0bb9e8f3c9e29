"""transformers: a model in float16 on the GPU, greedy and sampled, as model cards show it."""

import tempfile

import torch
from tests.tiny import tiny_checkpoint
from transformers import AutoModelForCausalLM, set_seed

assert torch.cuda.is_available()  # GPU only
with tempfile.TemporaryDirectory() as folder:
    tiny_checkpoint(folder, "qwen3", dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, device_map="auto")
    placed = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map={"": "cuda"})
print(model.device, model.dtype, placed.device, next(placed.parameters()).is_cuda)
ids = torch.tensor([[1, 17, 101, 9]]).to("cuda")
with torch.inference_mode():
    print(model(ids).logits[0, -1, :6].tolist())
print(model.generate(ids, max_new_tokens=8, do_sample=False)[0].tolist())
set_seed(3)
print(placed.generate(input_ids=ids, max_new_tokens=8, do_sample=True, temperature=0.8, top_k=20).cpu().tolist())
