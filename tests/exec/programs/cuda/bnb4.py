"""bitsandbytes: a model of transformers in 4 bits (nf4, nested), device_map="auto"; generates, and trains a LoRA."""

import tempfile

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from tests.tiny import tiny_checkpoint
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

torch.manual_seed(2)
config = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16
)
with tempfile.TemporaryDirectory() as folder:
    tiny_checkpoint(folder, "llama", dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, device_map="auto")
layer = model.model.layers[0].mlp.down_proj
print(type(layer).__name__, layer.weight.device, layer.weight.dtype, layer.weight.flatten()[:6].tolist())
ids = torch.tensor([[1, 17, 101, 9]], device="cuda")
print(model.generate(ids, max_new_tokens=6, do_sample=False)[0].tolist())
model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(r=4, target_modules=["q_proj"]))
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), 1e-2)
for _ in range(2):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.device, loss.item())
