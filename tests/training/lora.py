"""Adapters of PEFT with random values, and what the model then says."""

import torch
from peft import LoraConfig, get_peft_model

IDS = list(range(3, 40))
KINDS = {
    "lora": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "patterns": {"rank_pattern": {"q_proj": 3}, "alpha_pattern": {"layers.1.self_attn.q_proj": 24}},
    "head": {"target_modules": ["q_proj", "lm_head"]},
}


def adapted(model, seed=0, **options):
    """The model with a LoRA of random values on its linear layers."""
    torch.manual_seed(seed)
    config = LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} | options)
    result = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
            elif "magnitude" in name:
                parameter.mul_(torch.empty_like(parameter).uniform_(0.7, 1.4))
    return result.eval()


def logits(model):
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0]
