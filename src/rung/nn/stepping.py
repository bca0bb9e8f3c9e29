"""Define what the optimizers of ``rung.nn.optim`` share: their rules, the state of each parameter, and a step."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from rung.core.errors import UsageError
from rung.formats.families.codebook4 import DYNAMIC

BLOCK = 256
#: bitsandbytes looks codes up on a CPU in a table of that many steps between -1 and 1.
_STEPS = 65536


@functools.cache
def codebook(signed: bool, device: torch.device) -> Tensor:
    """The 256 sorted values float32 in -1 ... 1, or for what is never negative in 0 ... 1."""
    if signed:
        return torch.from_numpy(DYNAMIC).to(device)
    values = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (exponent + 1) + 1, dtype=torch.float32)
        values += (10.0 ** (exponent - 6) * ((edges[:-1] + edges[1:]) / 2)).tolist()
    return torch.tensor(sorted(values), dtype=torch.float32, device=device)


def blocks(size: int) -> int:
    """How many blocks that many values make."""
    return -(-size // BLOCK)


def decode(codes: Tensor, absmax: Tensor, values: Tensor, size: int = BLOCK) -> Tensor:
    """Decode codes uint8 [n] and the magnitudes [blocks] of blocks of ``size`` to float32 [n]."""
    decoded = values[codes.long()]
    return decoded.mul_(absmax.repeat_interleave(size)[: len(codes)])


def encode(state: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Encode float32 [n] as codes uint8 [n] and magnitudes [blocks], near zero on a CPU as bitsandbytes does there."""
    if state.device.type == "cpu":
        return looked_up(state, BLOCK, values)
    return encode_nearest(state, values)


def encode_nearest(state: Tensor, values: Tensor, size: int = BLOCK) -> tuple[Tensor, Tensor]:
    """Encode float32 [n] as codes uint8 [n] of the nearest values of the codebook, and magnitudes of blocks."""
    table, absmax = in_blocks(state, size)
    table.mul_((1 / absmax.clamp_min(1e-38))[:, None])
    return torch.bucketize(table.view(-1)[: len(state)], (values[:-1] + values[1:]) / 2).to(torch.uint8), absmax


def in_blocks(flat: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Values f32 [blocks, size], zeros at the end, and the largest magnitude of each block."""
    count = -(-len(flat) // size)
    padded = torch.zeros(count * size, device=flat.device)
    padded[: len(flat)] = flat
    table = padded.view(count, size)
    return table, table.abs().amax(dim=1) if count else table.new_empty(0)


def looked_up(flat: Tensor, size: int, code: Tensor) -> tuple[Tensor, Tensor]:
    """Codes uint8 [n] and magnitudes of blocks, by bitsandbytes' table: what is smaller than 1.5e-5 of the largest has
    a code that is not the nearest."""
    table, absmax = in_blocks(flat, min(size, len(flat)))
    scaled = table.mul_((1 / absmax)[:, None]).clamp_(-1, 1)
    steps = scaled.add_(1).mul_(0.5 * (_STEPS - 1)).add_(0.5).to(torch.int32).clamp_(0, _STEPS - 1)
    codes = _table(code.detach().numpy().tobytes()).index_select(0, steps.view(-1)).view(table.shape)
    codes[absmax == 0] = 0
    return codes.view(-1)[: len(flat)], absmax


@functools.lru_cache(16)
def _table(code: bytes) -> Tensor:
    """The code uint8 of each step between -1 and 1, by the values of a codebook."""
    values = torch.frombuffer(bytearray(code), dtype=torch.float32)
    steps = -1 + 2 * torch.arange(_STEPS, dtype=torch.float32) / (_STEPS - 1)
    return torch.bucketize(steps, (values[:-1] + values[1:]) / 2).to(torch.uint8)


#: Under this key bitsandbytes hides what FSDP must not gather.
_WRAPPED = "__bnb_optimizer_quant_state__"
_QUANTIZED = ("qmap1", "qmap2", "state1", "state2", "absmax1", "absmax2", "unorm_vec")
#: What single parameters may have instead of the optimizer's own.
SETTINGS = (
    *("lr", "betas", "eps", "weight_decay", "alpha", "t_alpha", "t_beta3"),
    *("optim_bits", "min_8bit_size", "max_unorm"),
)
#: Values that are updated at once: bounds the float32 copies of the state.
PIECE = 4096 * BLOCK
#: (float32 [n], codebook) -> codes uint8 [n] and magnitudes of their blocks.
Encode = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Settings:
    """Hold what one step of one parameter goes by; ``step`` counts from 1."""

    lr: float
    betas: tuple[float, ...]
    eps: float
    weight_decay: float
    alpha: float
    step: int


#: (parameter, gradient, states, settings) float32 [n] -> the update, and what it is multiplied with beside the learning
#: rate; changes the states.
Update = Callable[[Tensor, Tensor, list[Tensor], Settings], tuple[Tensor, float]]


@dataclass(frozen=True)
class Rule:
    """An optimizer: its update, which of its states have a sign, and whether weight decay goes into the gradient."""

    update: Update
    signed: tuple[bool, ...]
    coupled: bool


def adam_update(
    gradient: Tensor, first: Tensor, second: Tensor, betas: tuple[float, ...], eps: float, step: int
) -> tuple[Tensor, float]:
    """Advance both means of Adam (arXiv:1412.6980) in place; ``step`` counts from 1.

    Returns the update and the factor that corrects the start of the means: a value changes by minus the learning rate
    times both.
    """
    first.mul_(betas[0]).add_(gradient, alpha=1 - betas[0])
    second.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    root = math.sqrt(1 - betas[1] ** step)
    return first / second.sqrt().add_(eps * root), root / (1 - betas[0] ** step)


def _adam(p: Tensor, g: Tensor, states: list[Tensor], s: Settings) -> tuple[Tensor, float]:
    """Adam; with decoupled weight decay arXiv:1711.05101, with a trust ratio LAMB, arXiv:1904.00962."""
    return adam_update(g, states[0], states[1], s.betas, s.eps, s.step)


def _ademamix(p: Tensor, g: Tensor, states: list[Tensor], s: Settings) -> tuple[Tensor, float]:
    """arXiv:2409.03137: a fast and a slow mean of the gradient."""
    fast, slow, v = states
    fast.mul_(s.betas[0]).add_(g, alpha=1 - s.betas[0])
    slow.mul_(s.betas[2]).add_(g, alpha=1 - s.betas[2])
    v.mul_(s.betas[1]).addcmul_(g, g, value=1 - s.betas[1])
    mean = fast / (1 - s.betas[0] ** s.step) + s.alpha * slow
    return mean / (v.sqrt() / math.sqrt(1 - s.betas[1] ** s.step) + s.eps), 1.0


def _lion(p: Tensor, g: Tensor, states: list[Tensor], s: Settings) -> tuple[Tensor, float]:
    """arXiv:2302.06675: the sign of an interpolated mean."""
    (m,) = states
    update = (m * s.betas[0] + g * (1 - s.betas[0])).sign_()
    m.mul_(s.betas[1]).add_(g, alpha=1 - s.betas[1])
    return update, 1.0


def _momentum(p: Tensor, g: Tensor, states: list[Tensor], s: Settings) -> tuple[Tensor, float]:
    """SGD with momentum; with a trust ratio LARS, arXiv:1708.03888."""
    (m,) = states
    m.mul_(s.betas[0] if s.step > 1 else 0).add_(g)
    return m.clone(), 1.0


def _rmsprop(p: Tensor, g: Tensor, states: list[Tensor], s: Settings) -> tuple[Tensor, float]:
    """A running mean of squares, without correction of its start."""
    (v,) = states
    v.mul_(s.betas[0]).addcmul_(g, g, value=1 - s.betas[0])
    return g / (v.sqrt() + s.eps), 1.0


def _adagrad(p: Tensor, g: Tensor, states: list[Tensor], s: Settings) -> tuple[Tensor, float]:
    """The sum of all squares so far."""
    (v,) = states
    v.addcmul_(g, g)
    return g / (v.sqrt() + s.eps), 1.0


ADAM = Rule(_adam, (True, False), coupled=False)
ADEMAMIX = Rule(_ademamix, (True, True, False), coupled=False)
LION = Rule(_lion, (True,), coupled=False)
MOMENTUM = Rule(_momentum, (True,), coupled=True)
RMSPROP = Rule(_rmsprop, (True,), coupled=True)
ADAGRAD = Rule(_adagrad, (True,), coupled=True)


class GlobalOptimManager:
    """Settings of single parameters, for all optimizers; there is one, ``get_instance()``."""

    _instance: GlobalOptimManager | None = None

    def __init__(self) -> None:
        self._settings: WeakIdKeyDictionary = WeakIdKeyDictionary()

    @classmethod
    def get_instance(cls) -> GlobalOptimManager:
        """The one manager."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def override_config(
        self,
        parameters: Tensor | Iterable[Tensor],
        key: str | None = None,
        value: Any = None,
        key_value_dict: dict[str, Any] | None = None,
    ) -> None:
        """Sets ``key`` (``optim_bits``, ``lr``, ``betas`` ...) or several at once for these parameters.

        Raises ``UsageError`` for what no optimizer here goes by.
        """
        overrides = key_value_dict if key_value_dict is not None else {key: value}
        unknown = sorted(str(name) for name in overrides if name not in SETTINGS)
        if unknown:
            raise UsageError(
                f"{', '.join(unknown)} would change nothing here",
                (),
                [f"set  {', '.join(SETTINGS)}"],
                code="option-without-effect",
            )
        for parameter in [parameters] if isinstance(parameters, Tensor) else parameters:
            self._settings.setdefault(parameter, {}).update(overrides)

    def register_module_override(self, module: nn.Module, param_name: str, config: dict[str, Any]) -> None:
        """The same for the parameter of that name of a module."""
        self.override_config(getattr(module, param_name), key_value_dict=config)

    def of(self, parameter: Tensor) -> dict[str, Any]:
        """Return the settings of a parameter."""
        found: dict[str, Any] = self._settings.get(parameter, {})
        return found


class Optimizer8bit(torch.optim.Optimizer):
    """Hold what all of them share; ``optim_bits`` 32 holds the state as it is."""

    _rule: Rule
    _bits: int | None = None  # of classes that leave no choice

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        optim_bits: int,
        min_8bit_size: int,
        max_unorm: float = 0.0,
        is_paged: bool = False,
    ) -> None:
        for name in ("lr", "eps", "weight_decay"):
            if not defaults[name] >= 0.0:
                raise UsageError(f"{name} is {defaults[name]}; it must not be negative", code="value-out-of-range")
        if not all(0.0 <= beta < 1.0 for beta in defaults["betas"]):
            raise UsageError(
                f"betas (momentum, alpha) are {defaults['betas']}; each must be in 0 ... 1, below 1",
                code="value-out-of-range",
            )
        if is_paged:
            raise UsageError(
                "paged state needs the managed memory of CUDA, which this optimizer does not use",
                ["8-bit state is a quarter of the size: it may fit without paging"],
                ["is_paged=False"],
            )
        bits = self._bits or optim_bits
        if bits not in (8, 32):
            raise UsageError(f"optim_bits is {bits}; it is 8 or 32", code="value-out-of-range")
        self._settings = {"optim_bits": bits, "min_8bit_size": min_8bit_size, "max_unorm": max_unorm}
        super().__init__(params, defaults)

    def config_of(self, group: dict[str, Any], p: Tensor) -> dict[str, Any]:
        return {"alpha": 0.0, **self._settings, **group, **GlobalOptimManager.get_instance().of(p)}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step for every parameter with a gradient; returns what ``closure`` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.numel():
                    self._update(p, self.config_of(group, p))
        return loss

    def _update(self, p: Tensor, config: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state.update(self._new_state(p, config))
        state["step"] += 1
        flat, grad = p.detach().contiguous().view(-1), p.grad
        assert grad is not None
        gradient = grad.contiguous().view(-1)
        settings = self.settings_at(state["step"], config)
        limit = None
        if config["max_unorm"] > 0:
            limit = config["max_unorm"] * float(flat.float().norm()) or math.inf
        for part in pieces(len(flat), whole=limit is not None):
            states = read_states(state, part, self._rule)
            norm = advance(self._rule, flat[part], gradient[part].float(), states, settings, limit)
            write_states(state, part, self._rule, states)
            if limit is not None:
                state["unorm_vec"].fill_(norm)
        if flat.data_ptr() != p.data_ptr():
            p.copy_(flat.view_as(p))

    def settings_at(self, step: int, config: dict[str, Any]) -> Settings:
        """The settings of a step; those that change with it are scheduled here."""
        return Settings(
            config["lr"], tuple(config["betas"]), config["eps"], config["weight_decay"], config["alpha"], step
        )

    def _new_state(self, p: Tensor, config: dict[str, Any]) -> dict[str, Any]:
        small = p.numel() < config["min_8bit_size"] or config["optim_bits"] == 32
        kind, state = torch.float32 if small else torch.uint8, {"step": 0}
        new_state: dict[str, Any] = state
        for number, count in enumerate(_counts(self._rule), 1):
            lead = (2,) if count == 2 else ()
            new_state[f"state{number}"] = torch.zeros((*lead, *p.shape), dtype=kind, device=p.device)
            if not small:
                new_state[f"qmap{number}"] = codebook(number == 1, p.device)
                new_state[f"absmax{number}"] = torch.zeros((*lead, blocks(p.numel())), device=p.device)
        if config["max_unorm"] > 0:
            new_state["unorm_vec"] = torch.zeros(1, device=p.device)
        return new_state

    def state_dict(self) -> dict[str, Any]:
        """As bitsandbytes lays it out."""
        whole = super().state_dict()
        whole["state"] = {
            number: {
                **{name: value for name, value in state.items() if name not in _QUANTIZED},
                _WRAPPED: {name: value for name, value in state.items() if name in _QUANTIZED},
            }
            for number, state in whole["state"].items()
        }
        return whole

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state dictionary of this optimizer or of bitsandbytes' of the same name.

        Raises ``UsageError`` when it belongs to parameters of another size.
        """
        super().load_state_dict({**state_dict, "state": {}})  # torch would cast codes to the dtype of the parameter
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        own = [p for group in self.param_groups for p in group["params"]]
        for number, p in zip(numbers, own, strict=True):
            saved = dict(state_dict["state"].get(number, {}))
            saved |= saved.pop(_WRAPPED, {})
            if not saved:
                continue
            if saved["state1"].numel() != p.numel() * _counts(self._rule)[0]:
                raise UsageError(
                    f"The state of parameter {number} has {saved['state1'].numel()} values, the parameter {p.numel()}",
                    ["it was saved for another model, or by another optimizer"],
                )
            self.state[p] = {
                name: value.detach().to(p.device, copy=True) if isinstance(value, Tensor) else value
                for name, value in saved.items()
            }
            self.state[p]["step"] = int(saved["step"])


def _counts(rule: Rule) -> tuple[int, ...]:
    """How many states ``state1`` (and ``state2``) hold: AdEMAMix keeps both means in the first."""
    return (2, 1) if len(rule.signed) == 3 else (1,) * len(rule.signed)


def advance(
    rule: Rule, p: Tensor, g: Tensor, states: list[Tensor], settings: Settings, limit: float | None = None
) -> float:
    """Changes a parameter [n] and its float32 states by a gradient float32 [n].

    Returns the norm of the update, which is then at most ``limit``; without a limit 0.
    """
    values, decay = p.float(), settings.weight_decay
    if decay and rule.coupled:
        g = g.add(values, alpha=decay)
    update, factor = rule.update(values, g, states, settings)
    if decay and not rule.coupled:
        values = values * (1 - settings.lr * decay)
    norm = 0.0 if limit is None else float(update.norm())
    if limit is not None and norm > limit:
        factor *= limit / norm
    p.copy_(values.add(update, alpha=-settings.lr * factor))
    return norm


def pieces(size: int, whole: bool) -> Iterator[slice]:
    """Yield what is updated at once of ``size`` values: ``PIECE``, or all where the norm of the whole is asked for."""
    step = max(size, 1) if whole else PIECE
    for first in range(0, size, step):
        yield slice(first, min(first + step, size))


def _slots(state: dict[str, Any], rule: Rule) -> list[tuple[Tensor, Tensor | None, Tensor | None]]:
    """The states as flat tensors, with the magnitudes and the codebook of 8-bit ones."""
    found: list[tuple[Tensor, Tensor | None, Tensor | None]] = []
    for number, count in enumerate(_counts(rule), 1):
        codes, absmax, values = (state.get(f"{name}{number}") for name in ("state", "absmax", "qmap"))
        assert isinstance(codes, Tensor)
        for index in range(count):
            one = codes[index] if count == 2 else codes
            size = absmax[index] if absmax is not None and count == 2 else absmax
            found.append((one.view(-1), size, values))
    return found


def read_states(state: dict[str, Any], part: slice, rule: Rule) -> list[Tensor]:
    """The states of a piece, float32; 32-bit ones are looked into and not copied."""
    return [
        codes[part] if absmax is None or values is None else decode(codes[part], _of(absmax, part), values)
        for codes, absmax, values in _slots(state, rule)
    ]


def write_states(state: dict[str, Any], part: slice, rule: Rule, states: list[Tensor], encode: Encode = encode) -> None:
    """Encodes the states of a piece again."""
    for new, (stored, absmax, values) in zip(states, _slots(state, rule), strict=True):
        if absmax is not None and values is not None:
            codes, sizes = encode(new, values)
            stored[part] = codes
            _of(absmax, part).copy_(sizes)


def _of(absmax: Tensor, part: slice) -> Tensor:
    return absmax[part.start // BLOCK : -(-part.stop // BLOCK)]
