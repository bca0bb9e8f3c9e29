"""The text encoder of Latte in 4 bits with f16 arithmetic, as transformers and bitsandbytes load it."""

import sys

import torch
from transformers import BitsAndBytesConfig, T5Config, T5EncoderModel

torch.manual_seed(0)
shape = {"vocab_size": 64, "d_model": 64, "d_kv": 16, "num_heads": 4, "d_ff": 128, "num_layers": 2}
T5EncoderModel(T5Config(feed_forward_proj="gated-gelu", **shape)).save_pretrained(sys.argv[1])
four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float16)
model = T5EncoderModel.from_pretrained(
    sys.argv[1],
    quantization_config=four_bits,
    dtype=torch.float16,
    device_map={"": 0 if torch.cuda.is_available() else "cpu"},
)
with torch.no_grad():
    states = model(torch.arange(12, device=model.device)[None]).last_hidden_state
assert states.dtype is torch.float16
print(*states[0, -1, :8].tolist())
