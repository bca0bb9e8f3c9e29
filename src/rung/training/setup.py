"""The settings of a run as PEFT and TRL take them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig

from rung.hub.peft import prepare
from rung.hub.quantized_layout import ReadConfig
from rung.hub.quantizer import QuantizationConfig
from rung.kernels.gpu.dtypes import TORCH_DTYPE
from rung.models.card import ModelCard
from rung.models.checkpoints import OWN
from rung.models.settings import QUANTIZATION, Settings, quantization
from rung.run.torch_device import torch_name
from rung.training.fitting import PLAIN, STORED, Fit
from rung.training.options import Options, names

#: Checkpoints of a run, about, and the most steps between two.
_CHECKPOINTS, _FAR = 20, 100


def lora(options: Options) -> LoraConfig:
    """The adapter that is trained."""
    targets: Any = options.targets if options.targets == "all-linear" else names(options.targets)
    return prepare(
        LoraConfig(
            r=options.rank,
            lora_alpha=options.alpha,
            lora_dropout=options.dropout,
            target_modules=targets,
            task_type="CAUSAL_LM",
        )
    )


@dataclass
class OneDevice(SFTConfig):
    """TRL's settings on the device that was planned for; by themselves they take all GPUs, from the first on."""

    torch_device: str = "cpu"

    @functools.cached_property
    def _setup_devices(self) -> torch.device:
        super()._setup_devices  # noqa: B018  fills what accelerate shares, which follows torch's current device
        device = torch.device(self.torch_device)
        self._n_gpu = min(self._n_gpu, 1)
        if device.index is not None:
            torch.get_device_module(device).set_device(device)
        return device


def settings(options: Options, planned: Fit, length: int, folder: Path, rows: int, evaluates: bool) -> SFTConfig:
    """TRL's settings for so many rows of at most ``length`` tokens; what is not named here is as TRL has it."""
    steps = int(rows / (planned.batch * planned.accumulate) * options.epochs)
    every = max(1, min(_FAR, steps // _CHECKPOINTS))
    return OneDevice(
        torch_device=torch_name(planned.device.id),
        output_dir=str(folder),
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        per_device_train_batch_size=planned.batch,
        per_device_eval_batch_size=planned.batch,
        gradient_accumulation_steps=planned.accumulate,
        gradient_checkpointing=planned.checkpointing,
        max_length=length,
        packing=options.packing,
        seed=options.seed,
        bf16=planned.dtype == "bf16",
        fp16=planned.dtype == "f16",
        use_cpu=planned.device.kind == "cpu",
        dataloader_pin_memory=planned.device.kind != "cpu",
        save_strategy="steps",
        save_steps=every,
        save_total_limit=2,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=every,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )


def load_tokenizer(card: ModelCard) -> Any:
    """The tokenizer of a folder, with a token to pad with."""
    tokenizer = AutoTokenizer.from_pretrained(card.path)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_base(card: ModelCard, format: str, dtype: str) -> Any:
    """The model with its linear layers in ``format``, or as they are ``STORED``, computing in ``dtype``."""
    options: dict[str, Any] = {"dtype": TORCH_DTYPE[dtype]}
    if format == STORED and card.quantized != OWN:  # transformers itself would ask for the package that wrote it
        options["config"] = config = AutoConfig.from_pretrained(card.path)
        described = quantization(Settings(card.metadata, card.name)) or {}
        for key in QUANTIZATION:
            config.__dict__.pop(key, None)
        options["quantization_config"] = ReadConfig(described, card.name, {})
    elif format not in (*PLAIN, STORED):
        options["quantization_config"] = QuantizationConfig(format=format)
    return AutoModelForCausalLM.from_pretrained(card.path, **options)
