"""Memory that papers publish, as held-out rows: nothing here was fitted to them. Where we differ the test says why."""

from dataclasses import replace

import pytest

from rung import formats
from rung.hardware import catalog
from rung.models.networks.component import describe
from rung.models.networks.values import plain
from rung.planning.check import check
from rung.planning.check_result import Question
from tests.models import meta_models

GB = 2**30
#: LLaMA: hidden size, layers, feed-forward width, heads, and what the table of chat models in QLoRA (Dettmers et al.
#: 2023, https://arxiv.org/abs/2305.14314, table 6) says that Guanaco of that size takes in 4 bits, in 10^9 bytes.
LLAMA = {
    "7B": (4096, 32, 11008, 32, 5), "13B": (5120, 40, 13824, 40, 10), "33B": (6656, 60, 17920, 52, 21),
    "65B": (8192, 80, 22016, 64, 41),
}  # fmt: skip
#: What figure 6 of that paper counts for the bases, in MB (quoted in https://github.com/artidoro/qlora/issues/269).
FIGURE_6 = {"7B": 5046, "13B": 8476, "33B": 19302, "65B": 37074}
#: GB that LoRA and Q-LoRA of Qwen-7B took on an A100, by tokens, batch 1 (https://github.com/QwenLM/Qwen).
QWEN = {
    256: (20.1, 11.5), 512: (20.4, 11.5), 1024: (21.5, 12.3), 2048: (23.8, 13.9), 4096: (29.7, 16.9),
    8192: (36.6, 23.5),
}  # fmt: skip
#: Table 2 of LLM.int8() (Dettmers et al. 2022, https://arxiv.org/abs/2208.07339): cards, and the largest models that
#: they hold in 8 bits and in 16.
CARDS = {
    "8 x A100 80GB": (8, "a100 80gb", {"opt-175b", "bloom"}, {"opt-175b", "bloom"}),
    "8 x A100 40GB": (8, "a100 40gb", {"opt-175b", "bloom"}, {"opt-66b"}),
    "8 x RTX 3090": (8, "3090", {"opt-175b", "bloom"}, {"opt-66b"}),
    "4 x RTX 3090": (4, "3090", {"opt-66b"}, {"opt-30b"}),
    "Colab Pro, 15 GB": (1, "t4", {"opt-13b"}, {"gpt-j-6b"}),
}
ORDER = ("gpt-j-6b", "t5-11b", "opt-13b", "opt-30b", "opt-66b", "opt-175b", "bloom")
OPT = {"opt-13b": (5120, 40, 40), "opt-30b": (7168, 48, 56), "opt-66b": (9216, 64, 72), "opt-175b": (12288, 96, 96)}
T5_11B = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 1024, "d_kv": 128, "d_ff": 65536,
    "num_heads": 128, "num_layers": 24, "vocab_size": 32128, "dtype": "float16",
}  # fmt: skip
QUICK = ("gpt-j-6b", "opt-13b")


def llama(size, words=32000):
    hidden, layers, wide, heads, _ = LLAMA[size]
    config = meta_models.config("llama-2-7b") | {
        "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": wide, "num_attention_heads": heads,
        "num_key_value_heads": heads, "max_position_embeddings": 8192, "vocab_size": words,
    }  # fmt: skip
    return plain(size, "config", size, describe(config, "x"))


def in_four_bits(size, format):
    """Bytes of weights, process and activations, and of adapters of rank 64 on all layers in 16 bits."""
    use = check(llama(size), [catalog.device("rtx a6000")], Question(formats=(format,), context=512)).choices[0].memory
    hidden, layers, wide, *_ = LLAMA[size]
    return use.weights + use.runtime + use.activations, 2 * 64 * layers * (4 * 2 * hidden + 3 * (hidden + wide))


@pytest.mark.parametrize("size", LLAMA)
def test_guanaco_in_four_bits(size):
    """Published is within 12 % of weights in blocks of 64 with scales in f32, adapters, and what a process takes. 13B
    is 16 % more, 10 % above figure 6 with adapters. One digit is rounded."""
    predicted = sum(in_four_bits(size, "nf4"))
    assert predicted == pytest.approx(LLAMA[size][-1] * 1e9, rel=0.16 if size == "13B" else 0.12, abs=0.5e9)


@pytest.mark.parametrize("size", LLAMA)
def test_the_bases_of_figure_6(size):
    """Within 3 %, with scales in 8 bits, and embedding and head in f32, as PEFT leaves them; rung has them in q6_k."""
    base, _ = in_four_bits(size, "nf4:nested")
    tables = 2 * 32000 * LLAMA[size][0]
    assert base + tables * (4 - formats.get("q6_k").bits / 8) == pytest.approx(FIGURE_6[size] * 1e6, rel=0.031)


@pytest.mark.parametrize("tokens", QWEN)
def test_finetuning_qwen_7b(tokens):
    """LoRA is within 5 %. Q-LoRA is within 4 % with what its script does otherwise: embedding and head in f16, a bucket
    of 2e8 gradients in f16, and the loss in f16, which takes 8 bytes a token and word and not 12."""
    device, words = catalog.device("a100 80gb"), 151936
    options = {"training": "lora", "rank": 64, "batch": 1, "sequence": tokens}
    choices = check(llama("7B", words), [device], Question(formats=("bf16", "nf4"), **options)).choices
    lora, quantized = (choice.checkpointing.lean.total for choice in choices)
    otherwise = 2 * words * 4096 * (2 - formats.get("q6_k").bits / 8) + 2 * 2e8 - 4 * words * tokens
    assert lora == pytest.approx(QWEN[tokens][0] * 1e9, rel=0.052)
    assert quantized + otherwise == pytest.approx(QWEN[tokens][1] * 1e9, rel=0.04)


def test_finetuning_65b_takes_one_card_of_48_gb():
    """More than 780 GB are published for moving all weights in 16 bits, which counts none of the activations and no
    copy of the weights in f32: 12 bytes a weight; ours is 16 bytes and more. With adapters of rank 64, whose moments
    QLoRA moves to the host when it is full, ours lies 5 % above the card; with rank 16 it fits."""
    card = catalog.device("rtx a6000")

    def take(**options):
        return check(llama("65B"), [card], Question(batch=1, sequence=512, **options)).choices[0]

    full = take(formats=("bf16",), training="full").memory
    assert full.total > 780e9
    assert full.total - full.activations == pytest.approx(780e9 * 16 / 12, rel=0.02)
    paged = take(formats=("nf4",), training="lora", rank=64)
    assert paged.memory.total - paged.memory.optimizer < card.budget < paged.memory.total < 1.05 * card.budget
    assert take(formats=("nf4",), training="lora", rank=16).fits


@pytest.mark.parametrize("size", ["7B", "13B", "33B"])
def test_finetuning_on_one_card(size):
    """33B on 24 GB, 13B and 7B on less (rank 16, moments in 8 bits): said of paged optimizers in the same paper."""
    card = catalog.device({"7B": "t4", "13B": "t4", "33B": "3090"}[size])
    options = {"training": "lora", "rank": 16, "batch": 1, "sequence": 512, "optimizer": "adamw8bit"}
    assert check(llama(size), [card], Question(formats=("nf4",), **options)).choices[0].fits


def outline(name):
    """Models that no description covers are taken from the modules of transformers."""
    modules = pytest.importorskip("rung.hub.networks.modules")
    pytest.importorskip("transformers")
    if name in OPT:
        hidden, layers, heads = OPT[name]
        config = {
            "model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": hidden, "ffn_dim": 4 * hidden,
            "word_embed_proj_dim": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "vocab_size": 50272, "max_position_embeddings": 2048,
        }  # fmt: skip
    elif name == "bloom":
        config = {
            "model_type": "bloom", "architectures": ["BloomForCausalLM"], "hidden_size": 14336, "n_layer": 70,
            "n_head": 112, "vocab_size": 250880,
        }  # fmt: skip
    else:
        config = {
            "model_type": "gptj", "architectures": ["GPTJForCausalLM"], "n_embd": 4096, "n_layer": 28, "n_head": 16,
            "vocab_size": 50400, "rotary_dim": 64, "n_positions": 2048,
        }  # fmt: skip
    found = modules.component_of(modules.module_of({**config, "dtype": "float16"}, name))
    return plain(name, "config", name, found)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in ORDER if n != "t5-11b"]
)
def test_what_fits_in_8_and_in_16_bits(name):
    """Each model on each row: it fits where it or a larger one is named."""
    found = outline(name)
    for count, card, *named in CARDS.values():
        one = catalog.device(card)
        group = tuple(replace(one, id=f"{one.id}:{number}") for number in range(count))
        answer = check(found, [group], Question(formats=("int8", "f16"), context=512))
        for choice, models in zip(answer.choices, named, strict=True):
            least = min(ORDER.index(model) for model in models)
            most = max(ORDER.index(model) for model in models)
            if ORDER.index(name) <= least or name in models:
                assert choice.fits, (card, choice.format, choice.verdict.reason)
            elif ORDER.index(name) > most:
                assert not choice.fits, (card, choice.format)


def test_t5_11b_in_8_bits():
    """The table has it on 12 GB. Its weights take 10.7 GB here too; with keys and values of 512 tokens, of which cross
    attention keeps as many again, scores with a bias and the process it needs 12.9 GB: the card of free Colab had 15.
    """
    found = plain("t5-11b", "config", "x", describe(T5_11B, "x"))
    choices = check(found, [catalog.device("t4")], Question(formats=("int8", "f16"), context=512)).choices
    assert [choice.fits for choice in choices] == [True, False]
    assert choices[0].memory.weights == pytest.approx(11.3e9, rel=0.02)
    assert 12 * GB < choices[0].memory.total < 13 * GB


def test_an_encoder_decoder_is_split_by_its_layers():
    """Half of the weights of T5-11B on each of two cards."""
    found = plain("t5-11b", "config", "x", describe(T5_11B, "x"))
    one = catalog.device("t4")
    group = (one, replace(one, id="t4:1"))
    alone = check(found, [one], Question(formats=("f16",), context=64)).choices[0]
    split = check(found, [group], Question(formats=("f16",), context=64)).choices[0]
    assert not alone.fits
    assert split.fits
    assert split.memory.weights == pytest.approx(alone.memory.weights, rel=0.02)
