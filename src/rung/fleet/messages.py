"""Messages between the head and other machines over HTTPS, and states of replicas."""

from __future__ import annotations

from typing import Any

import msgspec

from rung.server.protocol import Failed, ModelInfo

#: Label of Ray that says the class of a node's device.
CLASS_LABEL = "rung-class"


class Versions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Versions that must be equal on all nodes: Python's minor version, Ray's and rung's."""

    python: str
    ray: str
    rung: str


class DeviceReport(msgspec.Struct, frozen=True):
    """A device: its memory and what a plan may use of it in bytes, and what it reads in bytes a second."""

    id: str
    name: str
    memory: int
    budget: int
    bandwidth: float


class NodeReport(msgspec.Struct, frozen=True):
    """The description of a machine by itself."""

    name: str
    address: str
    device_class: str
    cores: int
    devices: list[DeviceReport]


class JoinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine wants to join: its join token, versions and report, and its request for a certificate (PEM)."""

    token: str
    versions: Versions
    report: NodeReport
    certificate_request: str


class Invitation(msgspec.Struct, frozen=True):
    """A machine may join: the authority's certificate and its own (PEM), Ray's token, and where Ray's head is."""

    authority: str
    certificate: str
    token: str
    ray: str


class RatesReport(msgspec.Struct, frozen=True):
    """Tokens a second that a replica measured: of prompts, of one answer alone, of all its answers together; and that
    were predicted of one answer alone, 0 where nothing is known. ``latency``: seconds to the first token of a request
    that are not for reading its prompt."""

    prefill: float
    decode: float
    decode_sum: float
    predicted: float = 0.0
    latency: float = 0.0


class StageReport(msgspec.Struct, frozen=True):
    """Layers of a model on a node: their bytes and whether they give the same bytes in any company; or why not."""

    memory: int = 0
    same_bytes: bool = False
    cause: str = ""


class ReplicaState(msgspec.Struct, frozen=True):
    """The state of a replica: the model once it is loaded, or why it is not, and what it measured."""

    node: str
    process: int
    model: ModelInfo | None = None
    failed: Failed | None = None
    rates: RatesReport | None = None
    level: str = ""


class ModelStatus(msgspec.Struct, frozen=True):
    """A model on a node: ``state`` is ready, loading, or why it does not run; rates as measured, ``speed`` the share of
    them that the router sees now; ``running`` are answers. ``layers`` says which ones a node has, where several have
    one model; ``steps`` are sentences about what ran slower there than it could, or with other bytes."""

    model: str
    state: str
    format: str = ""
    memory: int = 0
    context: int = 0
    slots: int = 0
    running: int = 0
    rates: RatesReport | None = None
    speed: float = 1.0
    layers: str = ""
    steps: list[str] = []


class NodeStatus(msgspec.Struct, frozen=True):
    """A node, whether it is there (up, leaving, lost), and its models."""

    report: NodeReport
    state: str
    models: list[ModelStatus]


class NodeLog(msgspec.Struct, frozen=True):
    """The end of a log, and what ``explain`` says of it: the cause, how sure it is, and fixes with their commands."""

    log: str = ""
    answer: str = ""
    fixes: list[tuple[str, str]] = []


class Failure(msgspec.Struct, frozen=True):
    """A failure of a node, or of a model on it: when (seconds since 1970), why, and the log there."""

    node: str
    model: str
    time: float
    cause: str
    log: NodeLog


class FleetStatus(msgspec.Struct, frozen=True):
    """The fleet: where it serves, its nodes, how many requests wait, and what failed lately, the latest first."""

    url: str
    ray: str
    versions: Versions
    nodes: list[NodeStatus]
    waiting: int
    models: list[ServedModel] = []
    failures: list[Failure] = []


class ServedModel(msgspec.Struct, frozen=True):
    """A model of the fleet, the SHA-256 in hex of its files, by their names, and how many requests wait for it."""

    name: str
    files: dict[str, str]
    waiting: int = 0


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a batch for a model: ``prompt`` or ``messages`` with the options of ``Model.generate``, or ``texts``
    for embeddings. A prompt is a turn of a user where the model chats, unless it is ``raw``."""

    model: str
    prompt: str | None = None
    messages: list[dict[str, str]] = []
    texts: list[str] = []
    raw: bool = False
    system: str | None = None
    options: dict[str, Any] = {}


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a node: text, tokens and their entries, why it ended, and prompt tokens; or embeddings, the bytes
    of f32 in little endian. ``error`` says why there is none."""

    node: str = ""
    text: str = ""
    tokens: list[int] = []
    reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    logprobs: list[dict[str, Any]] | None = None
    vectors: list[bytes] = []
    error: str = ""


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node by its name."""

    name: str


class Text(msgspec.Struct, frozen=True):
    """A text: a join token, or that something is done."""

    text: str
