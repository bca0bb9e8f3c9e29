"""Sizes of llama.cpp's mixtures beside files that were published, of models that the rules were not held against."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rung.models.outline import open_outline
from rung.planning.gguf_mixtures import storage
from rung.planning.network_spec import Subject
from rung.planning.weight_plan import file_bytes

CONFIGS = Path(__file__).parents[1] / "models" / "configs"
HUB = "https://huggingface.co"
#: 10^9 bytes as the hub lists them: (configuration, what differs from it, what the file holds beside weights).
FILES = {
    f"{HUB}/bartowski/gemma-2-9b-it-GGUF/tree/599b2dd2c0fa0bdd3689ad97d9c7ff4a5cc1ee8f": (
        "gemma-2-9b", {}, 0.007,
        "iq2_m 3.43 iq2_s 3.21 iq2_xs 3.07 iq3_m 4.49 iq3_xs 4.15 iq3_xxs 3.8 iq4_xs 5.18 q2_k 3.81 q3_k_l 5.13 "
        "q3_k_m 4.76 q3_k_s 4.34 q4_k_m 5.76 q4_k_s 5.48",
    ),
    f"{HUB}/bartowski/Mistral-7B-v0.2-hf-GGUF/tree/main": (
        "mistral-7b-v0.1", {}, 0.001,
        "iq3_m 3.28 iq3_s 3.18 iq4_xs 3.94 q2_k 2.72 q3_k_l 3.82 q3_k_m 3.52 q3_k_s 3.16 q4_k_m 4.37 q4_k_s 4.14 "
        "q5_k_m 5.13 q5_k_s 5.0 q6_k 5.94 q8_0 7.7",
    ),
    f"{HUB}/bartowski/Qwen2-0.5B-Instruct-GGUF/tree/main": (  # rows of 896, which blocks of 256 do not divide
        "qwen2.5-0.5b", {}, 0.006,
        "iq3_m 0.343 iq4_xs 0.349 q3_k_l 0.369 q4_k_m 0.398 q4_k_s 0.385 q5_k_m 0.42 q5_k_s 0.413 q6_k 0.506 "
        "q8_0 0.531",
    ),
    f"{HUB}/bartowski/Qwen2-72B-Instruct-GGUF/tree/13c6e83cf4dcd031cd78b0880ecaddf30ca0ad41": (  # rows of 29,568
        "qwen2-7b",
        {"hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80, "num_attention_heads": 64,
         "num_key_value_heads": 8, "vocab_size": 152064},
        0.006,
        "iq1_m 23.7 iq2_m 29.3 iq2_xxs 25.5 iq3_m 35.5 iq3_xxs 31.8 iq4_xs 39.7 q2_k 29.8 q3_k_m 37.7 q3_k_s 34.5 "
        "q4_k_m 47.4",
    ),
    f"{HUB}/mradermacher/Mixtral-8x7B-v0.1-GGUF/tree/main": (  # eight experts
        "mixtral-8x7b-v0.1", {}, 0.001,
        "iq3_m 21.4 iq3_s 20.4 iq3_xs 19.4 iq4_xs 25.4 q2_k 17.3 q3_k_l 24.2 q3_k_m 22.5 q3_k_s 20.4 q4_k_m 28.4 "
        "q4_k_s 26.7 q5_k_m 33.2 q5_k_s 32.2",
    ),
}  # fmt: skip
#: Files of IQ4_XS that were made with an importance matrix, with which llama.cpp stores the down projections of the
#: first eighth of the layers no finer: what those take more without.
WITH_MATRIX = {("gemma-2-9b", "iq4_xs"): 1.0077, ("qwen2.5-0.5b", "iq4_xs"): 1.0058, ("qwen2-7b", "iq4_xs"): 1.0114}


@pytest.mark.parametrize("source", FILES, ids=lambda source: source.split("/")[4])
def test_mixtures_have_the_size_of_published_files(source, tmp_path):
    name, changed, unquantized, listed = FILES[source]
    config = json.loads((CONFIGS / f"{name}.json").read_text()) | changed
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = listed.split()
    published = dict(zip(words[::2], map(float, words[1::2]), strict=True))
    outline = open_outline(tmp_path)
    subject = Subject.of_component(outline.components[0], outline.kind, outline.path)
    for mixture, listed_size in published.items():
        size = listed_size * WITH_MATRIX.get((name, mixture), 1)
        rounding = {0: 0.0005, 1: 0.005, 2: 0.05}[len(str(int(listed_size))) if size >= 1 else 0]
        ours = file_bytes(subject, storage(mixture)) / 1e9 + unquantized
        assert ours == pytest.approx(size, abs=rounding + 0.0025 * size), mixture
