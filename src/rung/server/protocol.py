"""Messages between the HTTP process and an engine: msgpack of tagged structs, each after its length.

An engine reads ``Load`` first. It answers ``Planned`` and waits for ``Proceed`` before it reads weights, each time that
it has a plan, and then ``Ready`` or ``Failed`` (id 0). Requests have ids that the HTTP process gives. ``Generate`` is
answered by ``Started``, then by a ``Step`` for each step that has tokens, then by ``Finished`` for each of its answers;
any other request by ``Value``; each of them by ``Failed`` instead. After ``Cancel`` nothing more comes. ``SteppedDown``
comes between the tokens before a step down and those after it.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Literal

import msgspec

#: Bytes of a frame at most: embeddings of many texts.
MOST_FRAME = 2**28
_LENGTH = struct.Struct("<I")
HEADER = _LENGTH.size


class Load(msgspec.Struct, tag=True, frozen=True):
    """Load a model with the keywords of ``rung.load`` and ``software`` of a simulated card; the first message.

    ``stored`` is its name in the store, which then counts as in use; ``level`` the level of CPU instructions, if it is
    to be lower than the best; ``system`` the system prompt of conversations that have none; ``slots`` the folder
    of saved slots (``DIR`` or ``DIR:SIZE``), if there is one; ``template`` a chat template in the place of the
    model's own; ``thinks`` whether it thinks where a request does not say, None for its template's own way. ``layers``
    are how many of the first layers the engine has, where other machines have the rest and ``stages`` machines have
    all; 0 is all of them."""

    model: str
    options: dict[str, Any] = {}
    stored: str = ""
    level: str = ""
    system: str = ""
    slots: str = ""
    template: str = ""
    thinks: bool | None = None
    layers: int = 0
    stages: int = 1


class Behind(msgspec.Struct, tag=True, frozen=True):
    """Hidden states behind the last layer, for a ``Forward``; ``error`` says why there are none."""

    id: int
    hidden: bytes = b""
    error: str = ""


class Forward(msgspec.Struct, tag=True, frozen=True):
    """Hidden states of a batch for the layers of other machines (``rung.engine.scheduling.stages``). They are sent on
    in the order in which they come."""

    id: int
    batch: bytes
    hidden: bytes


class Proceed(msgspec.Struct, tag=True, frozen=True):
    """Read the weights: there is room for what was planned."""


class Grammar(msgspec.Struct, frozen=True):
    """The form that an answer must have: a JSON schema, a regular expression, or llama.cpp's GBNF."""

    kind: Literal["json_schema", "regex", "gbnf"]
    text: str


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a model thinks before it answers: whether, for how many tokens at most, and how hard by its template's
    words. None is the template's own way."""

    enabled: bool | None = None
    budget: int | None = None
    effort: str | None = None


class Infill(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with a hole, behind ``prefix`` and ``prompt`` and before ``suffix``; ``extra`` are other files by
    ``filename`` and ``text``."""

    prefix: str
    suffix: str
    prompt: str = ""
    extra: list[dict[str, str]] = []


class Generate(msgspec.Struct, tag=True, kw_only=True):
    """Answer ``messages``, or continue each of ``prompts`` (a text, token ids with texts among them, or a hole), ``n``
    times.

    ``options`` are those of ``Model.chat``. Answer number ``p * n + c`` is choice c of prompt p. With ``echo`` the text
    of a prompt stands before its answer; ``prompt_logprobs`` asks for the log probability of each of its tokens, and
    of so many of the likeliest. ``tools`` are functions that answers may call, ``template_kwargs`` variables of the
    chat template. ``owner`` shares prefixes and turns. ``answered`` are the tokens of each answer that a process before
    this one has computed, after which it goes on, or None for one that has ended. ``adapters`` are scales of the
    adapters that the model was loaded with, by their places; None is as it was loaded. ``slot`` is the number of the
    place that its first answer takes; None is any.

    ``continues_last``: the answer goes on from the last message. ``text_bias`` is added to the logits of the tokens of
    texts; ``ignore_end`` forbids the tokens that end an answer. ``times``: deltas have the times so far; ``progress``:
    ``PromptRead`` comes while a prompt is read; ``details``: ``Finished`` has ``settings`` and ``prompt``.
    """

    id: int = 0
    prompts: list[str | list[int | str] | Infill] = []
    messages: list[dict[str, Any]] = []
    options: dict[str, Any] = {}
    n: int = 1
    owner: str = ""
    echo: bool = False
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    tools: list[dict[str, Any]] = []
    template_kwargs: dict[str, Any] = {}
    reasoning: ReasoningOptions = ReasoningOptions()
    answered: list[list[int] | None] = []
    adapters: dict[int, float] | None = None
    slot: int | None = None
    text_bias: list[tuple[str, float]] = []
    ignore_end: bool = False
    continues_last: bool = False
    times: bool = False
    progress: bool = False
    details: bool = False

    @property
    def answers(self) -> int:
        """Return how many answers there will be."""
        return self.n * (len(self.prompts) or 1)


class Cancel(msgspec.Struct, tag=True, frozen=True):
    """End a request: its sequences are gone within a step."""

    id: int


class Stats(msgspec.Struct, tag=True):
    """Say what is computed now: ``Value`` with a ``Counts``."""

    id: int = 0


class Encode(msgspec.Struct, tag=True, kw_only=True):
    """Give the token ids of a text and the bytes of each, as ``Tokenizer.encode`` does."""

    id: int = 0
    text: str
    special: bool
    bos: bool


class Decode(msgspec.Struct, tag=True, kw_only=True):
    """Give the text of token ids, names of control tokens among it."""

    id: int = 0
    tokens: list[int]


class Render(msgspec.Struct, tag=True, kw_only=True):
    """Give the text of messages and tools by the chat template, and with ``counts`` how many tokens it has, which must
    fit the context. ``begins_answer`` and ``continues_last`` are those of ``Model.chat_text``."""

    id: int = 0
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    template_kwargs: dict[str, Any] = {}
    begins_answer: bool = True
    continues_last: bool = False
    counts: bool = True


class Embed(msgspec.Struct, tag=True, kw_only=True):
    """Give the embeddings of texts or token ids, which may have texts among them, each the bytes of f32 in little
    endian, and how many tokens these have."""

    id: int = 0
    texts: list[str | list[int | str]]
    truncate: bool = False


class ActOnSlot(msgspec.Struct, tag=True, kw_only=True):
    """Save the content of a slot of an owner under a name, restore it from there, or erase it."""

    id: int = 0
    action: Literal["save", "restore", "erase"]
    slot: int
    name: str = ""
    owner: str = ""


#: Requests that have one answer, a ``Value``.
Question = Stats | Encode | Decode | Render | Embed | ActOnSlot
ToEngine = Load | Proceed | Generate | Cancel | Behind | Question


class Counts(msgspec.Struct, frozen=True):
    """Work of an engine: answers that have a cache, answers that wait for one, and so far: steps, and the answers
    that took part in each, added up; steps of answers with guesses, the tokens guessed, and those that were right."""

    processing: int
    waiting: int
    steps: int
    busy: int
    guessing: int = 0
    guessed: int = 0
    guessed_right: int = 0


class ModelInfo(msgspec.Struct, frozen=True):
    """Facts of an engine's model. ``same_bytes``: answers do not depend on how their tokens are put together;
    ``lower_level`` is the next level of CPU instructions, empty where there is none; ``adapters`` are paths and scales
    of those that it was loaded with; ``sandbox`` says what its process may still do; ``files`` is another text
    where the model's files are others."""

    name: str
    format: str
    devices: list[str]
    context: int
    parallel: int
    vocabulary: int
    memory: int
    chats: bool
    writes: bool
    family: str
    template: str
    same_bytes: bool
    lower_level: str
    adapters: list[tuple[str, float]] = []
    sandbox: str = ""
    files: str = ""


class Progress(msgspec.Struct, tag=True, frozen=True):
    """So many bytes of the weights are read."""

    label: str
    done: int
    total: int


class Planned(msgspec.Struct, tag=True, frozen=True):
    """The model is planned: the most bytes that it takes, by device."""

    memory: dict[str, int]


class Note(msgspec.Struct, tag=True, frozen=True):
    """A sentence that whoever started the server should read."""

    text: str


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The model answers."""

    model: ModelInfo


class Echo(msgspec.Struct, frozen=True):
    """A prompt as it stands before its answers: text, and entries of its tokens with ``prompt_logprobs``."""

    text: str
    logprobs: list[dict[str, Any]] | None = None


class Started(msgspec.Struct, tag=True, frozen=True):
    """A request is understood: its prompts have so many tokens in all. ``echoes`` are of each prompt, with ``echo``.
    ``reasons``: the model thinks between marks before it answers; ``is_reasoning``: the prompt ends within them."""

    id: int
    prompt_tokens: int
    echoes: list[Echo] = []
    reasons: bool = False
    is_reasoning: bool = False


class Queued(msgspec.Struct, tag=True, frozen=True):
    """How many answers come before each request that waits for room in the cache, by id; the others have begun."""

    positions: dict[int, int]


class SteppedDown(msgspec.Struct, tag=True, frozen=True):
    """A rung was left for a lower one: ``step`` as ``rung.core.types.StepDown`` has it. Tokens that come from now on
    are those of the lower one. With ``options`` the process ends: its successor is to be loaded with these."""

    step: dict[str, Any]
    options: dict[str, Any] = {}


class Times(msgspec.Struct, frozen=True, array_like=True):
    """Tokens and seconds of an answer so far: those of its prompt that were known and that were read, those that it
    has, and the seconds of steps that read and that computed tokens."""

    cached: int
    read: int
    read_seconds: float
    predicted: int
    predicted_seconds: float


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """A piece of one answer, maybe of no text yet, and its tokens. ``logprobs`` are entries as ``Model.chat`` has them,
    one for each token; ``times`` are there with ``Generate.times``."""

    id: int
    index: int
    text: str
    tokens: list[int]
    logprobs: list[dict[str, Any]] | None = None
    times: Times | None = None


class PromptRead(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """So much of a prompt of ``total`` tokens is read for an answer, with ``Generate.progress``."""

    id: int
    index: int
    total: int
    times: Times


class Step(msgspec.Struct, tag=True, frozen=True):
    """The pieces that a step computed, of all requests."""

    deltas: list[Delta]


class Finished(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The answer ``index`` has ended, in the place ``slot``: why (end, stop, length or context), what it cost, and
    ``report`` as ``Model`` has it. ``prompt_seconds`` and ``seconds`` are those of steps that read its prompt and that
    computed its tokens. With ``Generate.details`` ``settings`` are those of ``Sampling`` that it had, ``prompt`` is
    the text of its prompt, and ``end_token`` the entry of the token that ended it, if one did and log probabilities
    were asked for."""

    id: int
    index: int
    slot: int
    reason: str
    stop_string: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    prompt_seconds: float
    seconds: float
    seed: int | None
    report: dict[str, Any]
    settings: dict[str, Any] = {}
    prompt: str = ""
    end_token: dict[str, Any] | None = None

    @property
    def times(self) -> Times:
        """Return its tokens and seconds."""
        read = self.prompt_tokens - self.cached_tokens
        return Times(self.cached_tokens, read, self.prompt_seconds, self.completion_tokens, self.seconds)


class Failed(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """A request, or the load (id 0), failed: the parts of a ``RungError``, and the HTTP status that suits it."""

    id: int
    status: int
    code: str
    cause: str
    facts: list[str] = []
    ways_out: list[str] = []
    exit_code: int = 1
    numbers: dict[str, int] = {}


class Value(msgspec.Struct, tag=True, frozen=True):
    """The answer to a request that is not ``Generate``."""

    id: int
    value: Any


FromEngine = (
    Progress
    | Planned
    | Note
    | Ready
    | SteppedDown
    | Queued
    | Started
    | PromptRead
    | Step
    | Finished
    | Failed
    | Value
    | Forward
)

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


class NumberTooLarge(ValueError):
    """A message has a whole number of more than 64 bits, as a schema or the arguments of a call may."""


def _encode(message: ToEngine | FromEngine) -> bytes:
    try:
        return _encoder.encode(message)
    except OverflowError as error:
        raise NumberTooLarge("a whole number of more than 64 bits") from error


def frame(message: ToEngine | FromEngine) -> bytes:
    """Return the bytes of a message with its length before them. Raises ``NumberTooLarge``."""
    data = _encode(message)
    return _LENGTH.pack(len(data)) + data


def digest(message: Generate) -> bytes:
    """Return a short value that two requests have in common only where they ask for the same. Raises
    ``NumberTooLarge``."""
    return hashlib.blake2b(_encode(message), digest_size=16).digest()


def length(header: bytes) -> int:
    """Return the length that a frame begins with. Raises ``ValueError`` for one that no message has."""
    (found,) = _LENGTH.unpack(header)
    if found > MOST_FRAME:
        raise ValueError(f"a message of {found:,} bytes")
    return int(found)


def read_to_engine(data: bytes) -> ToEngine:
    """Return a message to an engine."""
    found: ToEngine = _to_engine.decode(data)
    return found


def read_from_engine(data: bytes) -> FromEngine:
    """Return a message from an engine."""
    found: FromEngine = _from_engine.decode(data)
    return found
