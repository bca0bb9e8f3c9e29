"""Tokenizers of encoders: whole texts to ids with what the model wants around them, many texts at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rung.core.errors import BadFile
from rung.engine.tokenizers.folder import read_config
from rung.engine.tokenizers.gguf import CONTROL, SPACE
from rung.models.cards.encoder import EncoderCard

#: Ids of special tokens that a GGUF file does not give, as llama.cpp takes them.
_GGUF_DEFAULTS = {"cls": 101, "sep": 102, "unknown": 100}
#: Keys of GGUF files for them, in the order in which they are asked.
_GGUF_KEYS = {"cls": ("cls", "bos"), "sep": ("seperator", "separator", "eos"), "unknown": ("unknown",)}
_MOST_VOCABULARY = 64 * 2**20


class TextTokenizer:
    """Ids of texts, each with its special tokens ([CLS] and [SEP]) around it; ``size`` is the number of tokens."""

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.size = int(tokenizer.get_vocab_size())
        self.around = int(tokenizer.num_special_tokens_to_add(False))
        self.notes: tuple[str, ...] = ()

    @classmethod
    def from_card(cls, card: EncoderCard) -> TextTokenizer:
        """The tokenizer of an encoder. Raises ``BadFile`` where there is none, or one of another model."""
        if card.tokenizer == "gguf":
            found = cls(_from_gguf(card.metadata, card.name))
        elif card.tokenizer.endswith(".txt"):
            found = cls(_from_vocabulary(Path(card.tokenizer)))
        elif card.tokenizer:
            found = cls(_from_json(Path(card.tokenizer)))
        else:
            raise BadFile(
                f"{card.name} has no tokenizer",
                ["neither tokenizer.json nor vocab.txt is in the folder"],
                ["hf download ORG/REPO tokenizer.json tokenizer_config.json"],
                code="model-incomplete",
            )
        if found.size > card.encoder.vocabulary:
            raise BadFile(
                f"{card.name} contradicts itself: its vocabulary has {found.size:,} tokens, "
                f"its embedding {card.encoder.vocabulary:,} rows"
            )
        return found

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]  # lone surrogates have no bytes
        return [list(found.ids) for found in self._tokenizer.encode_batch_fast(clean, add_special_tokens=True)]

    def encode(self, text: str, *, special: bool = True, bos: bool = True) -> list[int]:
        """Return the ids of a text, with ``bos`` those that stand around it, too. Names of special tokens in it are
        these, or with ``special`` False text like any other."""
        tokenizer = self._tokenizer if special else self._of_strangers
        return list(tokenizer.encode(text.encode("utf-8", "replace").decode("utf-8"), add_special_tokens=bos).ids)

    @cached_property
    def _of_strangers(self) -> Any:
        """The same tokenizer, for text in which no names are read."""
        found = type(self._tokenizer).from_str(self._tokenizer.to_str())
        found.encode_special_tokens = True
        return found

    def piece(self, number: int) -> bytes:
        """Return the bytes of a token, as the vocabulary writes them."""
        return str(self._tokenizer.id_to_token(number) or "").encode()

    def encode_whole(self, text: str) -> list[int]:
        """Return the ids of one text."""
        return self.encode_all([text])[0]

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Return the text of ids, with ``special`` the names of special tokens among it; blanks and capitals of the
        original are lost."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=not special))


def _from_json(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise BadFile(f"{path} is no tokenizer that can be loaded", [str(error)]) from error


def _from_vocabulary(path: Path) -> Any:
    """The tokenizer of a folder that has vocab.txt alone, a token a line, as the first checkpoints of BERT do."""
    if path.stat().st_size > _MOST_VOCABULARY:
        raise BadFile(f"{path} is too large for what it is", [f"{path.stat().st_size} bytes"])
    try:
        tokens = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is not UTF-8 at byte {error.start}") from error
    config = read_config(path.parent)
    named = {"cls": "[CLS]", "sep": "[SEP]", "unknown": "[UNK]"}
    for name, key in (("cls", "cls_token"), ("sep", "sep_token"), ("unknown", "unk_token")):
        named[name] = config.get(key) or named[name]
    ids = {token: number for number, token in enumerate(tokens)}
    missing = [text for text in named.values() if text not in ids]
    if missing:
        raise BadFile(f"{path} lacks the token {missing[0]}, which stands around a text")
    lowercase, accents = config.get("do_lower_case", True) is True, config.get("strip_accents")
    special = [text for name in ("pad", "mask") if (text := config.get(f"{name}_token") or f"[{name.upper()}]") in ids]
    return _word_piece(ids, named, special, lowercase, accents if isinstance(accents, bool) else None)


def _from_gguf(metadata: Mapping[str, Any], model: str) -> Any:
    """The tokenizer in a GGUF file: llama.cpp writes ``▁word`` for what begins a word, and ``ing`` for ``##ing``."""

    def get(key: str) -> Any:
        return metadata.get(f"tokenizer.ggml.{key}")

    if get("model") != "bert":
        raise BadFile(
            f"The tokenizer of {model} is of kind {str(get('model'))[:40]!r}",
            ["rung reads encoders with tokenizers of kind bert"],
        )
    texts = [] if get("tokens") is None else list(get("tokens"))
    if not texts:
        raise BadFile(f"{model} has no vocabulary", ["tokenizer.ggml.tokens is missing or empty"])
    kinds = [] if get("token_type") is None else list(get("token_type"))
    ids: dict[str, int] = {}
    special = []
    for number, text in enumerate(texts):
        control = number < len(kinds) and kinds[number] == CONTROL
        if control or (text.startswith("[") and text.endswith("]")):
            ids.setdefault(text, number)
            special += [text] * control
        else:
            ids.setdefault(text[1:] if text.startswith(SPACE) else f"##{text}", number)
    words = {number: text for text, number in ids.items()}
    named = {}
    for name, keys in _GGUF_KEYS.items():
        token = next((value for key in keys if isinstance(value := get(f"{key}_token_id"), int)), _GGUF_DEFAULTS[name])
        if token not in words:
            raise BadFile(f"The tokenizer of {model} has no token {token}, which stands around a text")
        named[name] = words[token]
    return _word_piece(ids, named, special, get("normalizer.lowercase") is not False, None)


def _word_piece(
    ids: dict[str, int], named: Mapping[str, str], special: Sequence[str], lowercase: bool, accents: bool | None
) -> Any:
    """BERT's tokenizer of a vocabulary. ``accents``: whether they are taken off; None: where letters become small."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer: Any = Tokenizer(models.WordPiece(vocab=ids, unk_token=named["unknown"], max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, last = named["cls"], named["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=[(first, ids[first]), (last, ids[last])]
    )
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in dict.fromkeys((*named.values(), *special))]
    )
    return tokenizer
