"""Token ids against the checkpoints' own tokenizers (transformers) and llama.cpp's recorded ones."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import unicodedata
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rung.core.errors import BadFile
from rung.engine.tokenizers.pretokenizers import PRE_TOKENIZERS
from rung.engine.tokenizers.tokenizer import Tokenizer

os.environ.setdefault("HF_HUB_OFFLINE", "1")
FIXTURES = Path(__file__).parents[1] / "fixtures"
TOKENIZERS = FIXTURES / "tokenizers"
sys.path.append(str(FIXTURES))

import texts  # noqa: E402

BYTE_LEVEL = ("llama-bpe", "qwen2", "gpt-4o", "tekken")
PIECES = ("llama2", "phi3", "gemma")
ALL = BYTE_LEVEL + PIECES


@cache
def own(name: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOKENIZERS / name)


@cache
def metadata(name: str) -> dict[str, Any]:
    from gguf import GGUFReader

    fields = GGUFReader(TOKENIZERS / f"{name}.gguf").fields
    return {key: field.contents() for key, field in fields.items() if key.startswith(("tokenizer.", "general."))}


@cache
def recorded() -> dict[str, Any]:
    return json.loads(gzip.decompress((TOKENIZERS / "llama_cpp.json.gz").read_bytes()))


def every_string() -> list[str]:
    return texts.plain() + texts.with_special()


def differences(strings: list[str], expected: Any, found: Any) -> list[tuple[str, Any, Any]]:
    return [
        (text, w, f) for text, w, f in ((text, expected(text), found(text)) for text in strings) if list(w) != list(f)
    ]


def test_the_strings_are_as_varied_as_they_should_be() -> None:
    assert len(every_string()) == 1000
    together = "".join(every_string())
    missing = [
        sample for sample in ("  ", "\t", "7", "🚀", "你", "भ", "\x00", "\x1b", "\u200d", "é") if sample not in together
    ]
    assert missing == []
    assert all(token in together for token in texts.SPECIAL)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("special", [True, False])
def test_a_folder_gives_the_ids_of_its_own_tokenizer(name: str, special: bool) -> None:
    tokenizer = Tokenizer.from_file(TOKENIZERS / name / "tokenizer.json")
    wrong = differences(
        every_string(),
        lambda text: own(name).encode(text, split_special_tokens=not special),
        lambda text: tokenizer.encode(text, special=special, bos=True),
    )
    assert wrong == []


@pytest.mark.parametrize("name", ALL)
def test_a_folder_decodes_like_its_own_tokenizer(name: str) -> None:
    tokenizer = Tokenizer.from_file(TOKENIZERS / name / "tokenizer.json")
    ids = [tokenizer.encode(text, special=True, bos=True) for text in every_string()]
    for one in ids:
        assert tokenizer.decode(one) == own(name).decode(one, skip_special_tokens=True)


@pytest.mark.parametrize("name", PIECES)
def test_a_bare_sentencepiece_model_gives_plain_text_the_ids_of_its_class(name: str, tmp_path: Path) -> None:
    for file in ("tokenizer.model", "tokenizer_config.json", "config.json"):
        shutil.copy(TOKENIZERS / name / file, tmp_path)
    tokenizer = Tokenizer.from_file(tmp_path / "tokenizer.model")
    # transformers' Llama class leaves out the space before a text that starts with one, and merges runs of more
    # than 31 spaces in another order; SentencePiece itself does neither.
    strings = [text for text in texts.plain() if not text.startswith(" ")]
    assert len(strings) > 600
    wrong = differences(
        strings, lambda text: own(name).encode(text), lambda text: tokenizer.encode(text, special=True, bos=True)
    )
    assert wrong == []


@pytest.mark.parametrize("name", ["llama2", "gemma"])
def test_a_bare_sentencepiece_model_finds_control_tokens_like_its_class(name: str) -> None:
    tokenizer = Tokenizer.from_file(TOKENIZERS / name / "tokenizer.model")
    strings = [text for text in texts.with_special() if not text.startswith((" ", "▁"))]
    wrong = differences(
        strings, lambda text: own(name).encode(text), lambda text: tokenizer.encode(text, special=True, bos=True)
    )
    assert wrong == []


def checkpoint_ids(name: str, text: str) -> list[int]:
    """The checkpoint's own tokenizer on plain text: SentencePiece itself where that made it."""
    if name in ("llama2", "gemma"):
        from sentencepiece import SentencePieceProcessor

        pieces = SentencePieceProcessor(model_file=str(TOKENIZERS / name / "tokenizer.model"))
        return [pieces.bos_id(), *pieces.encode(text)]
    return list(own(name).encode(text))


@pytest.mark.parametrize("name", ALL)
def test_a_gguf_file_gives_plain_text_the_ids_of_the_checkpoint(name: str) -> None:
    tokenizer = Tokenizer.from_gguf(metadata(name))
    wrong = differences(
        texts.plain(),
        lambda text: checkpoint_ids(name, text),
        lambda text: tokenizer.encode(text, special=True, bos=True),
    )
    assert wrong == []


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("key", "special"), [("special", True), ("text", False)])
def test_a_gguf_file_gives_text_with_control_tokens_the_ids_of_llama_cpp(name: str, key: str, special: bool) -> None:
    tokenizer = Tokenizer.from_gguf(metadata(name))
    expected = dict(zip(texts.with_special(), recorded()[name][key], strict=True))
    controls = [text for text, kind in zip(*vocabulary(name), strict=True) if kind in (2, 3, 4)]
    strings = [text for text in expected if any(control in text for control in controls)]
    assert len(strings) > 40
    wrong = differences(strings, expected.__getitem__, lambda text: tokenizer.encode(text, special=special, bos=True))
    assert wrong == []


def vocabulary(name: str) -> tuple[list[str], list[int]]:
    return metadata(name)["tokenizer.ggml.tokens"], metadata(name)["tokenizer.ggml.token_type"]


#: llama.cpp takes all letters for lower case here, where the checkpoints' expressions cut at "aB".
BLIND_TO_CASE = ("cohere2moe", "kimi-k2", "tiny_aya", "youtu")


@pytest.mark.parametrize("pre", sorted(key.removeprefix("pre:") for key in recorded() if key.startswith("pre:")))
def test_every_pre_tokenizer_cuts_as_llama_cpp_does(pre: str) -> None:
    tokenizer = Tokenizer.from_gguf(metadata("qwen2") | {"tokenizer.ggml.pre": pre})
    expected = dict(zip(texts.ascii_only(), recorded()[f"pre:{pre}"], strict=True))
    strings = [text for text in expected if not (pre in BLIND_TO_CASE and text[1:] != text[1:].lower())]
    assert tokenizer.notes == ()
    assert len(strings) > 30
    assert (
        differences(strings, expected.__getitem__, lambda text: tokenizer.encode(text, special=False, bos=True)) == []
    )


def test_all_recorded_pre_tokenizers_are_known_and_differ() -> None:
    names = {key.removeprefix("pre:") for key in recorded() if key.startswith("pre:")}
    assert names <= set(PRE_TOKENIZERS)
    assert len(names) > 70
    assert len({json.dumps(recorded()[f"pre:{name}"]) for name in names}) > 12


@pytest.mark.parametrize(("pre", "word"), [("from-the-future", "from-the-future"), (None, "names no pre-tokenizer")])
def test_an_unknown_pre_tokenizer_is_the_default_one_and_said(pre: str | None, word: str) -> None:
    changed = {key: value for key, value in metadata("qwen2").items() if key != "tokenizer.ggml.pre"}
    tokenizer = Tokenizer.from_gguf(changed | ({"tokenizer.ggml.pre": pre} if pre else {}))
    default = Tokenizer.from_gguf(changed | {"tokenizer.ggml.pre": "default"})
    assert len(tokenizer.notes) == 1
    assert word in tokenizer.notes[0]
    text = "it's 12345 + $$67 = ?"
    assert tokenizer.encode(text, special=False, bos=True) == default.encode(text, special=False, bos=True)
    other = Tokenizer.from_gguf(metadata("qwen2"))
    assert tokenizer.encode(text, special=False, bos=True) != other.encode(text, special=False, bos=True)


@pytest.mark.parametrize("name", ALL)
def test_a_gguf_file_decodes_what_it_encodes(name: str) -> None:
    tokenizer = Tokenizer.from_gguf(metadata(name))
    composes = name == "qwen2"
    for text in texts.plain():
        expected = unicodedata.normalize("NFC", text) if composes else text
        assert tokenizer.decode(tokenizer.encode(text, special=False, bos=True)) == expected


@pytest.mark.parametrize("name", ["llama-bpe", "llama2"])
def test_a_stream_gives_whole_characters_only(name: str) -> None:
    tokenizer = Tokenizer.from_gguf(metadata(name))
    text = "a 𓂄 family 👩‍👩‍👧‍👦 and 你好"
    stream = tokenizer.stream(start=True)
    parts = [stream.push(token) for token in tokenizer.encode(text, special=False, bos=True)]
    assert "".join(parts) == text
    assert stream.flush() == ""
    assert "" in parts  # a token in the middle of a character shows nothing
    assert not any("\ufffd" in part for part in parts)


def test_a_character_that_never_ends_is_replaced_at_the_end() -> None:
    tokenizer = Tokenizer.from_gguf(metadata("llama2"))
    ids = tokenizer.encode("𓂄", special=False, bos=False)
    stream = tokenizer.stream()
    assert [stream.push(token) for token in ids[-4:-1]] == ["", "", ""]
    assert stream.flush() == "\ufffd"
    assert tokenizer.decode(ids[-4:-1]) == "\ufffd"


def test_text_that_goes_on_keeps_its_space_and_text_that_starts_does_not() -> None:
    tokenizer = Tokenizer.from_gguf(metadata("llama2"))
    ids = tokenizer.encode("the", special=False, bos=False)
    assert tokenizer.stream().push(ids[0]) == " the"
    assert tokenizer.stream(start=True).push(ids[0]) == "the"


def test_control_tokens_are_no_text_unless_asked_for() -> None:
    tokenizer = Tokenizer.from_gguf(metadata("qwen2"))
    ids = tokenizer.encode("<|im_start|>user", special=True, bos=True)
    assert tokenizer.decode(ids) == "user"
    assert tokenizer.decode(ids, special=True) == "<|im_start|>user"
    assert tokenizer.decode([tokenizer.size + 5, -1]) == ""


@pytest.mark.parametrize(
    ("name", "bos", "adds", "ends"),
    [
        ("llama2", "<s>", True, {"</s>"}),
        ("gemma", "<bos>", True, {"<eos>", "<end_of_turn>"}),
        ("phi3", "<s>", True, {"</s>", "<|end|>", "<|endoftext|>"}),
        ("llama-bpe", "<|begin_of_text|>", True, {"<|end_of_text|>", "<|eot_id|>"}),
        ("qwen2", None, False, {"<|im_end|>", "<|endoftext|>"}),
    ],
)
def test_the_beginning_and_the_ends(name: str, bos: str | None, adds: bool, ends: set[str]) -> None:
    for tokenizer in (Tokenizer.from_gguf(metadata(name)), Tokenizer.from_file(TOKENIZERS / name / "tokenizer.json")):
        assert tokenizer.adds_bos == adds
        assert tokenizer.named.get("bos_token") == bos or not adds
        assert len(tokenizer.encode("", special=False, bos=True)) == int(adds)
    found = Tokenizer.from_gguf(metadata(name))
    assert {found.piece(token).decode() for token in found.end_tokens} == ends


def test_given_ends_are_ends_too() -> None:
    assert 7 in Tokenizer.from_gguf(metadata("qwen2"), ends=[7]).end_tokens


def test_add_bos_token_decides_over_the_post_processor(tmp_path: Path) -> None:
    shutil.copytree(TOKENIZERS / "llama-bpe", tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": False}))
    assert not Tokenizer.from_file(tmp_path / "tokenizer.json").adds_bos


@pytest.mark.parametrize("kind", ["llama", "mistral", None])
def test_an_older_llama_folder_gives_the_ids_of_its_class(kind: str | None, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    shutil.copytree(TOKENIZERS / "llama2", tmp_path, dirs_exist_ok=True)
    found = json.loads((tmp_path / "tokenizer.json").read_text())
    prepend = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    found |= {"normalizer": {"type": "Sequence", "normalizers": prepend}, "pre_tokenizer": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(found))
    (tmp_path / "tokenizer.model").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind} if kind else {}))
    reference = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = Tokenizer.from_file(tmp_path / "tokenizer.json")
    wrong = differences(
        texts.with_special(), reference.encode, lambda text: tokenizer.encode(text, special=True, bos=True)
    )
    assert wrong == []


def test_tokens_longer_than_words_are_merged_as_llama_cpp_merges() -> None:
    # a token with a space inside forbids cutting the text there; scores decide, then the leftmost
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "▁", "a▁", "▁b", "a▁b", "ab", "bb"]
    scores = [0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0, -4.0]
    found = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.token_type": [2, 3, 3, *[1] * 8],
            "tokenizer.ggml.add_space_prefix": False,
        }
    )
    texts_of = lambda text: [tokens[token] for token in found.encode(text, special=False, bos=False)]  # noqa: E731
    assert texts_of("a b") == ["a▁b"]
    assert texts_of("abb") == ["ab", "b"]
    assert texts_of("bab") == ["b", "ab"]
    assert texts_of("?") == ["<unk>"]


def _calls_to_load(size: int) -> int:
    """Count calls of functions, Python's and others', that a vocabulary of that size takes."""
    meta = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [f"▁w{number}" for number in range(size)],
        "tokenizer.ggml.scores": [-float(number) for number in range(size)],
        "tokenizer.ggml.token_type": [1] * size,
    }
    calls: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, value: calls.append(event) if event.endswith("call") else None)
    try:
        Tokenizer.from_gguf(meta).encode("hello world", special=True, bos=True)
    finally:
        sys.setprofile(before)
    return len(calls)


def test_a_large_vocabulary_loads_in_few_calls() -> None:
    _calls_to_load(100)  # imports
    assert _calls_to_load(8_000) - _calls_to_load(4_000) < 10 * 4_000


def _without(key: str) -> dict[str, Any]:
    return {name: value for name, value in metadata("llama2").items() if name != f"tokenizer.ggml.{key}"}


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({}, "missing"),
        (_without("model"), "missing"),
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
        (_without("tokens"), "no vocabulary"),
        (_without("tokens") | {"tokenizer.ggml.tokens": [1, 2]}, "no strings"),
        (_without("tokens") | {"tokenizer.ggml.tokens": "abc"}, "no array"),
        (_without("token_type") | {"tokenizer.ggml.token_type": [1, 2]}, "too short"),
        (_without("token_type") | {"tokenizer.ggml.token_type": ["1"] * 2000}, "no numbers"),
        (_without("scores") | {"tokenizer.ggml.scores": [0.5]}, "too short"),
        (metadata("qwen2") | {"tokenizer.ggml.merges": [1]}, "no strings"),
        ({k: v for k, v in metadata("qwen2").items() if k != "tokenizer.ggml.merges"}, "without"),
    ],
)
def test_a_broken_gguf_vocabulary_is_refused(meta: dict[str, Any], words: str) -> None:
    with pytest.raises(BadFile, match=words):
        Tokenizer.from_gguf(meta).encode("a", special=False, bos=False)


def test_merges_that_make_no_token_are_left_out() -> None:
    changed = metadata("qwen2") | {
        "tokenizer.ggml.merges": ["zzz qqq", "lonely", *metadata("qwen2")["tokenizer.ggml.merges"]]
    }
    text = "the model runs"
    found = Tokenizer.from_gguf(changed).encode(text, special=False, bos=False)
    assert found == Tokenizer.from_gguf(metadata("qwen2")).encode(text, special=False, bos=False)


@pytest.mark.parametrize(
    ("name", "content"), [("tokenizer.json", "{}"), ("tokenizer.json", "nonsense"), ("tokenizer.model", "nonsense")]
)
def test_a_broken_folder_is_refused(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadFile):
        Tokenizer.from_file(tmp_path / name)


def test_a_missing_file_and_a_broken_configuration_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="not there"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")
    with pytest.raises(BadFile, match="toy has no tokenizer") as caught:
        Tokenizer.from_card(SimpleNamespace(tokenizer="", name="toy"))
    assert "hf download" in caught.value.ways_out[0]
    shutil.copy(TOKENIZERS / "qwen2" / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(BadFile, match="no JSON"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")


def test_lone_surrogates_do_no_harm() -> None:
    for name in ("qwen2", "llama2"):
        tokenizer = Tokenizer.from_gguf(metadata(name))
        assert tokenizer.decode(tokenizer.encode("a\ud800b", special=True, bos=True)) == "a?b"
