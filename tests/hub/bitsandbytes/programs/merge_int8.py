"""A LoRA merged into a model that bitsandbytes holds in int8, as PEFT does it."""

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
base = LlamaForCausalLM.from_pretrained(
    sys.argv[1],
    quantization_config=BitsAndBytesConfig(load_in_8bit=True),
    dtype=torch.float16,
    device_map={"": 0 if torch.cuda.is_available() else "cpu"},
)
lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
model = get_peft_model(base, lora)
ids = torch.arange(8, device=base.device)[None]
with torch.no_grad():
    before = model(ids).logits
    merged = model.merge_and_unload()
    after = merged(ids).logits
assert type(merged.model.layers[0].mlp.up_proj).__name__ == "Linear8bitLt"
print(float((before - after).norm() / before.norm()) < 0.1, *after[0, -1, :4].tolist())
