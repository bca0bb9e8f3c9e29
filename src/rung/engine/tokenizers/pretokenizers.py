"""Pre-tokenizers of byte-level BPE in GGUF files: what each ``tokenizer.ggml.pre`` stands for.

A pre-tokenizer is a list of regular expressions; each one cuts every piece left by those before it into
matches and what lies between them. The expressions are those of the checkpoints' own ``tokenizer.json``
where they are known, since a GGUF file must tokenize plain text as its checkpoint does; where only
llama.cpp's reading is public, they follow its behavior. Names and families are llama.cpp's.

Text in which special tokens occur is cut as llama.cpp cuts it (``around_specials``): it reads some classes of
letters differently and composes no characters, and people compare with it there.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, replace

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _letters() -> dict[str, int]:
    # GPT-2's table: printable Latin-1 bytes stand for themselves, the others for U+0100 onwards, in order.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [value for value in range(256) if value not in plain]
    return {chr(v): v for v in plain} | {chr(0x100 + n): v for n, v in enumerate(shifted)}


BYTE_LETTERS = _letters()


def byte_letters_to_bytes(text: str) -> bytes:
    """The bytes that byte letters stand for; a character outside the alphabet stands for itself."""
    out = bytearray()
    for letter in text:
        value = BYTE_LETTERS.get(letter)
        if value is None:
            out += letter.encode("utf-8", "replace")
        else:
            out.append(value)
    return bytes(out)


def is_byte_token(text: str) -> int | None:
    """The value of a ``<0x0A>`` token, else None."""
    found = _BYTE.fullmatch(text)
    return int(found[1], 16) if found else None


class Characters:
    """Whole characters out of bytes that come in pieces; invalid bytes become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """The characters that are complete now; an unfinished one is kept."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """U+FFFD if a character was left unfinished, else an empty string."""
        return self._decoder.decode(b"", final=True)


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"


def _cased(tail: str) -> str:
    """Words that begin a new piece where the case rises (``camelCase``), each with an optional tail."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{_UPPER}*{_LOWER}+{tail}|{start}{_UPPER}+{_LOWER}*{tail}"


def _cased_ascii(tail: str) -> str:
    """The same as llama.cpp reads it: only ASCII letters have a case, marks are no letters."""
    start, upper, lower = r"[^\r\n\p{L}\p{N}]?", r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
    return f"{start}{upper}*{lower}+{tail}|{start}{upper}+{lower}*{tail}"


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_MARKS}|{_SPACES}"
_JAIS2 = (
    rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_MARKS}|\s*[\r\n]+|"
    + "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"|\s{1,2}(?!\S)|\s{1}"
)
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_GPT4O = rf"{_cased(_CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{_SLASHED}|{_SPACES}"
_TEKKEN = rf"{_cased('')}|\p{{N}}|{_SLASHED}|{_SPACES}"
_GPT4O_ASCII = rf"{_cased_ascii(_CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{_SLASHED}|{_SPACES}"
_TEKKEN_ASCII = rf"{_cased_ascii('')}|\p{{N}}|{_SLASHED}|{_SPACES}"
_YOUTU = rf"{_cased(_CONTRACTIONS + '?')}|\p{{N}}|{_SLASHED}|{_SPACES}"
_PUNCTUATED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+"
)
_DEEPSEEK3 = rf"{_PUNCTUATED}[\r\n]*|{_SPACES}"
_SPARK = rf"{_PUNCTUATED}|[\r\n]|\s+(?!\S)|\s+"
_KANJI = r"[一-龥぀-ゟ゠-ヿ]+"
_HAN_HANGUL = r"[一-龥ࠀ-一가-퟿]+"
# Escaped, not written out: some of them are not in NFC, which editors like to change.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-"
    "\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-"
    "\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-"
    "\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_NO_HAN_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_NO_HAN_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_NO_HAN_UPPER}*{_NO_HAN_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_NO_HAN_UPPER}+{_NO_HAN_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
)
_THREES_FROM_THE_RIGHT = r"\d{1,3}(?=(?:\d{3})*\b)"
_ASIAN = r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
_LINES = r"[^\n]+|[\n]+"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_EXAONE_MOE = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut before merging.

    ``splits``: regular expressions, one after the other. ``whole_words``: a piece that is a token is not
    merged from its bytes. ``adds_bos``: the default of ``add_bos_token``. ``nfc``: the checkpoints of this
    kind compose characters first. ``raw``: tokens are text with ``▁`` for spaces and ``<0x00>`` bytes, not
    GPT-2's byte letters. ``around_specials``: the splits where special tokens occur, if they differ.
    """

    splits: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False
    nfc: bool = False
    raw: bool = False
    around_specials: tuple[str, ...] = ()

    def as_llama_cpp(self) -> PreTokenizer:
        """How text is cut where special tokens occur."""
        return replace(self, splits=self.around_specials or self.splits, nfc=False, around_specials=())


_LLAMA3_FAMILY = PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True)
_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_PLAIN = PreTokenizer((_GPT2,))
_QWEN = PreTokenizer((_QWEN2,))
_THREE_DIGITS = PreTokenizer((r"\p{N}{1,3}", _KANJI, _DEEPSEEK3))

#: The default of llama.cpp: for files from before ``tokenizer.ggml.pre`` existed.
DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

_FAMILIES: tuple[tuple[PreTokenizer, str], ...] = (
    (DEFAULT, "default"),
    (_LLAMA3_FAMILY, "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"),
    (PreTokenizer((_LLAMA3,)), "dbrx smaug-bpe chatglm-bpe"),
    (PreTokenizer((_LLAMA3,), whole_words=True), "glm4 glm5"),
    (PreTokenizer((_JAIS2,)), "jais-2"),
    (
        PreTokenizer((r"\p{N}{1,3}", rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}+|{_MARKS}|{_SPACES}"), whole_words=True),
        "minicpm5",
    ),
    (
        PreTokenizer(
            (r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _HAN_HANGUL, r"\p{N}+")
        ),
        "deepseek-llm",
    ),
    (PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, r"\p{N}")), "deepseek-coder"),
    (_THREE_DIGITS, "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (PreTokenizer((r"\p{N}{1,3}", _KANJI, _SPARK, r"\p{N}")), "spark2_5"),
    (
        PreTokenizer(
            (rf"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{_KANJI}", _YOUTU),
            whole_words=True,
        ),
        "youtu",
    ),
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")), "falcon"),
    (_DIGITS, "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2"),
    (PreTokenizer((_GPT2,), nfc=True), "mpt olmo"),
    (
        _PLAIN,
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en "
        "jina-v2-code roberta-bpe jais exaone4 trillion granite-docling",
    ),
    (PreTokenizer((_QWEN2,), nfc=True), "qwen2"),
    (_QWEN, "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"),
    (PreTokenizer((_QWEN35,)), "qwen35"),
    (PreTokenizer((_BLOOM,)), "poro-chat bloom gpt3-finnish"),
    (PreTokenizer((_BLOOM, r"\p{N}")), "viking"),
    (PreTokenizer((_TEKKEN,), whole_words=True, adds_bos=True, around_specials=(_TEKKEN_ASCII,)), "tekken"),
    (
        PreTokenizer(
            (
                r"<sentinel:[0-9]+>",
                r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            adds_bos=True,
        ),
        "chameleon",
    ),
    (PreTokenizer((_GPT4O,), around_specials=(_GPT4O_ASCII,)), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (PreTokenizer((_GPT4O,), whole_words=True), "granite-embed-multi-97m"),
    (PreTokenizer((_THREES_FROM_THE_RIGHT, _GPT4O)), "tiny_aya cohere2moe"),
    (PreTokenizer((_KIMI,)), "kimi-k2"),
    (PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")), "superbpe"),
    (PreTokenizer((_BAILING,)), "bailingmoe bailingmoe2 llada-moe"),
    (PreTokenizer((_SEED,)), "seed-coder"),
    (PreTokenizer((rf"{_WORDS}|\p{{N}}|{_MARKS}|{_SPACES}",)), "ufakzeka"),
    (PreTokenizer((_THREES_FROM_THE_RIGHT, _ASIAN, _DEEPSEEK3)), "afmoe"),
    (PreTokenizer((_LINES, _QWEN2)), "laguna"),
    (PreTokenizer((_EXAONE_MOE,)), "exaone-moe"),
    (PreTokenizer((_LINES,), whole_words=False, adds_bos=True, raw=True), "gemma4 granite-embed-multi-311m"),
    (PreTokenizer((_LINES,), raw=True), "sarvam-moe"),
)

#: Pre-tokenizers by the name that GGUF files give them.
PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: pre for pre, names in _FAMILIES for name in names.split()}
