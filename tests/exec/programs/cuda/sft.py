"""TRL: supervised fine-tuning of a whole model by SFTTrainer in bfloat16."""

import tempfile

import torch
from datasets import Dataset
from tests.tiny import tiny_checkpoint
from tests.tiny_pipelines import tokenizer
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

words = Dataset.from_dict({"text": ["a cat runs over the sea", "the dog at night", "snow and a red sea"] * 4})
with tempfile.TemporaryDirectory() as folder:
    tiny_checkpoint(folder, "llama")
    model = AutoModelForCausalLM.from_pretrained(folder).to("cuda")
    settings = SFTConfig(
        output_dir=folder, max_steps=3, per_device_train_batch_size=2, learning_rate=1e-3, bf16=True, report_to=[],
        logging_steps=1, save_strategy="no", disable_tqdm=True, dataloader_pin_memory=True, seed=5,
        use_cpu="cuda" == "cpu",  # which is how this program is written for the processor
    )  # fmt: skip
    trainer = SFTTrainer(model=model, args=settings, train_dataset=words, processing_class=tokenizer())
    trainer.train()
print(trainer.args.device, next(model.parameters()).device)
print([row["loss"] for row in trainer.state.log_history if "loss" in row])
print(model.lm_head.weight.detach().flatten()[:4].tolist())
assert torch.isfinite(model.lm_head.weight).all()
