"""The tokenizer: byte-level BPE that splits text as Llama 3 does, so that GGUF readers know it as ``llama-bpe``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, BOS, START, END = "<pad>", "<bos>", "<start_of_turn>", "<end_of_turn>"
SPECIAL = (PAD, BOS, START, END)
PRE = "llama-bpe"
# words carry the space before them, numbers go in groups of three digits without it: "gtx1080" and "gtx 1080" share
# their tokens
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# the user's text is lower-cased here, so that every runner of the file asks as the model was trained
CHAT_TEMPLATE = (
    "{{ bos_token }}{% set ns = namespace(system='') %}{% for message in messages %}"
    "{% if message['role'] == 'system' %}"
    "{% set ns.system = message['content'] | trim + '\n\n' %}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '<start_of_turn>model\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% else %}"
    "{{ '<start_of_turn>user\n' + (ns.system + message['content'] | trim) | lower + '<end_of_turn>\n' }}"
    "{% set ns.system = '' %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


def _assemble(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Learn the merges of ``texts``."""
    tokenizer = _assemble(models.BPE(ignore_merges=True))
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def from_lists(tokens: Sequence[str], merges: Sequence[str]) -> Tokenizer:
    """The tokenizer of a GGUF file's ``tokenizer.ggml.tokens`` and ``.merges``."""
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = _assemble(models.BPE({token: i for i, token in enumerate(tokens)}, pairs, ignore_merges=True))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def question(text: str, first: bool = True) -> str:
    """One user turn and the head of the answer, as the chat template writes them; ``text`` is in lower case."""
    return f"{BOS if first else chr(10)}{START}user\n{text}{END}\n{START}model\n"
