"""A tiny model with a tokenizer and a chat template, and rows to train it on."""

from __future__ import annotations

import json
from pathlib import Path

from tests import tiny

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'][0] }}>{{ message['content'] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def chat_folder(folder: Path, model_type: str = "llama", **options):
    """A tiny checkpoint whose tokenizer knows bytes and a few marks; returns the model of transformers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model = tiny.tiny_checkpoint(folder, model_type, **options)
    marks = ["<pad>", "<bos>", "</>", "<u>", "<a>", "<s>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(marks + letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(marks)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="</>", chat_template=TEMPLATE
    )
    fast.save_pretrained(folder)
    return model


def write(path: Path, *rows) -> Path:
    """Rows as JSONL; a string is a line as it stands."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def question(number: int) -> dict:
    """A conversation of one turn."""
    return {
        "messages": [
            {"role": "user", "content": f"what is {number}"},
            {"role": "assistant", "content": "red" if number % 2 else "blue"},
        ]
    }
