"""PEFT: LoRA on a bfloat16 model, trained under autocast, saved, loaded onto the GPU, merged."""

import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tests.tiny import tiny_model

torch.manual_seed(1)
base = tiny_model("llama").to(torch.bfloat16).to("cuda")
model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), 1e-2)
ids = torch.randint(3, 300, (2, 12), device="cuda")
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.device, loss.item())
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    fresh = PeftModel.from_pretrained(tiny_model("llama").to(torch.bfloat16).cuda(), folder, torch_device="cuda")
merged = fresh.merge_and_unload().eval()
with torch.no_grad():
    print(merged.device, merged(ids).logits[0, -1, :5].tolist())
