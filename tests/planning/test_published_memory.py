"""Memory that papers publish, as held-out rows: nothing here was fitted to them. Where we differ the test says why."""

from dataclasses import replace

import pytest

from rung.hardware import catalog
from rung.models.outlines.component import describe
from rung.models.outlines.values import plain
from rung.planning.answer import Question
from rung.planning.check import check
from tests.models import meta_models

GB = 2**30
#: LLaMA: hidden size, layers, feed-forward width, heads, and what the table of chat models in QLoRA (Dettmers et al.
#: 2023, https://arxiv.org/abs/2305.14314, table 6) says that Guanaco of that size takes in 4 bits, in 10^9 bytes.
LLAMA = {
    "7B": (4096, 32, 11008, 32, 5), "13B": (5120, 40, 13824, 40, 10), "33B": (6656, 60, 17920, 52, 21),
    "65B": (8192, 80, 22016, 64, 41),
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


def llama(size):
    hidden, layers, wide, heads, _ = LLAMA[size]
    config = meta_models.config("llama-2-7b") | {
        "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": wide, "num_attention_heads": heads,
        "num_key_value_heads": heads, "max_position_embeddings": 2048,
    }  # fmt: skip
    return plain(size, "config", size, describe(config, "x"))


@pytest.mark.parametrize("size", LLAMA)
def test_guanaco_in_four_bits(size):
    """Published is within 12 % of weights in blocks of 64 with scales in f32, adapters of rank 64 on all layers in 16
    bits, and what a process takes on a GPU; of 13B it is 16 % more, and why is not known. One digit is rounded."""
    published = LLAMA[size][-1] * 1e9
    use = check(llama(size), [catalog.device("rtx a6000")], Question(formats=("nf4",), context=512)).choices[0].memory
    hidden, layers, wide, *_ = LLAMA[size]
    adapters = 2 * 64 * layers * (4 * 2 * hidden + 3 * (hidden + wide))
    predicted = use.weights + use.runtime + use.activations + adapters
    assert predicted == pytest.approx(published, rel=0.16 if size == "13B" else 0.12, abs=0.5e9)


def test_the_base_of_a_7b_model():
    """5,048 MB are published for LLaMA 7B in 4 bits, 26 MB for adapters of 0.2 % of its weights. Ours are 0.3 GB less
    than the published weights would be with embedding and head in 16 bits, which nf4 stores in q6_k here; the rest of
    the difference is what the process takes."""
    use = check(llama("7B"), [catalog.device("rtx a6000")], Question(formats=("nf4",), context=512)).choices[0].memory
    in_sixteen = 2 * 2 * 32000 * 4096 * (1 - 6.5625 / 16)
    missing = 5048 * 2**20 - (use.weights + in_sixteen)
    assert 0.4 * GB < missing < 1.2 * GB


def test_finetuning_65b_takes_one_card_of_48_gb():
    """More than 780 GB are published for moving all weights in 16 bits, which counts none of the activations and no
    copy of the weights in f32: 12 bytes a weight; ours is 16 bytes and more. With adapters of rank 64, whose moments
    QLoRA moves to the host when it is full, ours lies 5 % above the card; with rank 16 it fits."""
    card = catalog.device("rtx a6000")

    def take(**asked):
        return check(llama("65B"), [card], Question(batch=1, sequence=512, **asked)).choices[0]

    full = take(formats=("bf16",), training="full").memory
    assert full.total > 780e9
    assert full.total - full.activations == pytest.approx(780e9 * 16 / 12, rel=0.02)
    paged = take(formats=("nf4",), training="lora", rank=64)
    assert paged.memory.total - paged.memory.optimizer < card.budget < paged.memory.total < 1.05 * card.budget
    assert take(formats=("nf4",), training="lora", rank=16).fits


@pytest.mark.parametrize("size", ["7B", "13B", "33B"])
def test_finetuning_on_one_card(size):
    """33B on 24 GB, 13B and 7B on less (rank 16, moments in 8 bits): said of paged optimisers in the same paper."""
    card = catalog.device({"7B": "t4", "13B": "t4", "33B": "3090"}[size])
    asked = {"training": "lora", "rank": 16, "batch": 1, "sequence": 512, "optimizer": "adamw8bit"}
    assert check(llama(size), [card], Question(formats=("nf4",), **asked)).choices[0].fits


def outline(name):
    """Models that no description covers are taken from the modules of transformers."""
    modules = pytest.importorskip("rung.hub.modules")
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
