"""The settings of a run as PEFT and TRL take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peft import LoraConfig
from trl import SFTConfig

from rung.hub.peft import prepare
from rung.training.fitting import Fit
from rung.training.tune import Options, names

#: Checkpoints of a run, about, and the most steps between two.
_CHECKPOINTS, _FAR = 20, 100


def lora(asked: Options) -> LoraConfig:
    """The adapter that is trained."""
    targets: Any = asked.targets if asked.targets == "all-linear" else names(asked.targets)
    return prepare(
        LoraConfig(
            r=asked.rank,
            lora_alpha=asked.alpha,
            lora_dropout=asked.dropout,
            target_modules=targets,
            task_type="CAUSAL_LM",
        )
    )


def settings(asked: Options, planned: Fit, length: int, folder: Path, rows: int, evaluates: bool) -> SFTConfig:
    """TRL's settings for so many rows of at most ``length`` tokens; what is not named here is as TRL has it."""
    steps = int(rows / (planned.batch * planned.accumulate) * asked.epochs)
    every = max(1, min(_FAR, steps // _CHECKPOINTS))
    return SFTConfig(
        output_dir=str(folder),
        num_train_epochs=asked.epochs,
        learning_rate=asked.learning_rate,
        per_device_train_batch_size=planned.batch,
        per_device_eval_batch_size=planned.batch,
        gradient_accumulation_steps=planned.accumulate,
        gradient_checkpointing=planned.checkpointing,
        max_length=length,
        packing=asked.packing,
        seed=asked.seed,
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
