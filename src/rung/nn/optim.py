"""Optimizers whose state is kept in 8 bits; class names, arguments and state dictionaries are bitsandbytes'.

``Name8bit`` and ``Name32bit`` are ``Name`` with ``optim_bits`` 8 and 32. Tensors of fewer than ``min_8bit_size`` values
keep a state in 32 bits. Settings of a single parameter go into its group, or through ``GlobalOptimManager``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from typing import Any

from rung.core.errors import UsageError
from rung.nn.stepping import (
    ADAGRAD,
    ADAM,
    ADEMAMIX,
    LION,
    MOMENTUM,
    RMSPROP,
    GlobalOptimManager,
    Optimizer8bit,
    Rule,
    Settings,
)

_REQUIRED = Parameter.empty
_BITS = {"optim_bits": 32, "min_8bit_size": 4096}
_PAGED = {**_BITS, "is_paged": False}
_TWO = (0.9, 0.999)
_SGD = {"lr": _REQUIRED, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, **_BITS}


@dataclass(frozen=True)
class _Row:
    """An optimizer: its rule, its arguments in order with their defaults, and those that stand for the two betas.

    ``fixed``: arguments that bitsandbytes takes and ignores; other values than the defaults are refused. ``stateful``:
    the argument without which there is no state.
    """

    doc: str
    rule: Rule
    arguments: Mapping[str, Any]
    betas: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    stateful: str = ""


_ADAM = {"lr": 1e-3, "betas": _TWO, "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False, **_PAGED}
_TABLE: dict[str, _Row] = {
    "Adam": _Row(
        "Adam (arXiv:1412.6980); weight decay is decoupled, as in ``AdamW``.", ADAM, _ADAM, fixed=("amsgrad",)
    ),
    "AdamW": _Row(
        "Adam with decoupled weight decay (arXiv:1711.05101).",
        ADAM,
        {**_ADAM, "weight_decay": 1e-2},
        fixed=("amsgrad",),
    ),
    "AdEMAMix": _Row(
        """AdEMAMix (arXiv:2409.03137): Adam with a second, slow mean, whose share is ``alpha``.

        ``t_alpha`` and ``t_beta3`` are the steps in which alpha and the third beta reach their values; None: at once.
        """,
        ADEMAMIX,
        {"lr": 1e-3, "betas": (*_TWO, 0.9999), "alpha": 5.0, "t_alpha": None, "t_beta3": None}
        | {"eps": 1e-8, "weight_decay": 1e-2, **_PAGED},
    ),
    "Lion": _Row("Lion (arXiv:2302.06675).", LION, {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0, **_PAGED}),
    "LAMB": _Row(
        "LAMB (arXiv:1904.00962): Adam whose update has at most ``max_unorm`` times the norm of the parameter.",
        ADAM,
        {"lr": 1e-3, "bias_correction": True, "betas": _TWO, "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
        | {"adam_w_mode": True, **_BITS, "max_unorm": 1.0},
        fixed=("bias_correction", "amsgrad", "adam_w_mode"),
    ),
    "SGD": _Row(
        "Stochastic gradient descent with momentum.",
        MOMENTUM,
        _SGD,
        betas=("momentum", "dampening"),
        fixed=("dampening", "nesterov"),
        stateful="momentum",
    ),
    "LARS": _Row(
        "LARS (arXiv:1708.03888): momentum whose update has at most ``max_unorm`` times the norm of the parameter.",
        MOMENTUM,
        {**_SGD, "max_unorm": 0.02},
        betas=("momentum", "dampening"),
        fixed=("dampening", "nesterov"),
        stateful="momentum",
    ),
    "RMSprop": _Row(
        "RMSprop; ``alpha`` is how much of the mean of squares is kept.",
        RMSPROP,
        {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": False, **_BITS},
        betas=("alpha", "momentum"),
        fixed=("momentum", "centered"),
    ),
    "Adagrad": _Row(
        "Adagrad.",
        ADAGRAD,
        {"lr": 1e-2, "lr_decay": 0.0, "weight_decay": 0.0, "initial_accumulator_value": 0.0, "eps": 1e-10, **_BITS},
        fixed=("lr_decay", "initial_accumulator_value"),
    ),
}
_OWN = ("optim_bits", "min_8bit_size", "max_unorm", "is_paged")


def _build(name: str, row: _Row) -> type[Optimizer8bit]:
    """Return the class of a row."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    arguments = [Parameter(each, kind, default=default) for each, default in row.arguments.items()]
    signature = Signature([Parameter("self", kind), Parameter("params", kind), *arguments])

    def init(self: Optimizer8bit, *positional: Any, **named: Any) -> None:
        bound = signature.bind(self, *positional, **named)
        bound.apply_defaults()
        values = {key: value for key, value in bound.arguments.items() if key not in ("self", "params")}
        _refuse_ignored(row, values)
        own = {key: values.pop(key) for key in _OWN if key in values}
        betas = tuple(values.pop(each) for each in row.betas) or values.pop("betas", (0.0, 0.0))
        defaults = {key: value for key, value in values.items() if key not in row.fixed}
        defaults = {"eps": 0.0, **defaults, "betas": tuple(betas)}
        Optimizer8bit.__init__(self, bound.arguments["params"], defaults, **own)

    init.__signature__ = signature  # type: ignore[attr-defined]
    members = {"__doc__": row.doc, "__module__": __name__, "__init__": init, "_rule": row.rule}
    return type(name, (_AdEMAMix if row.rule is ADEMAMIX else Optimizer8bit,), members)


def _refuse_ignored(row: _Row, values: Mapping[str, Any]) -> None:
    if row.stateful and values[row.stateful] == 0:
        raise UsageError(
            "Without momentum there is no state to hold in 8 bits", (), ["torch.optim.SGD", "momentum=0.9"]
        )
    if not (values.get("bias_correction", True) and values.get("adam_w_mode", True)):
        raise UsageError("LAMB corrects the start of its means and decouples weight decay; neither can be left out")
    for name in row.fixed:
        if values[name] != row.arguments[name]:
            raise UsageError(
                f"{name}={values[name]} would change nothing here",
                (),
                [f"leave {name} out"],
                code="option-without-effect",
            )


class _AdEMAMix(Optimizer8bit):
    def settings_at(self, step: int, config: dict[str, Any]) -> Settings:
        """Return the settings of a step."""
        plain = super().settings_at(step, config)
        alpha, (first, second, third) = plain.alpha, plain.betas
        if config.get("t_alpha"):
            alpha = min(step * alpha / config["t_alpha"], alpha)
        if config.get("t_beta3") and first > 0:
            # halfway in the logarithm of the half-life: the paper's equation for beta3
            done, low, high = step / config["t_beta3"], math.log(first), math.log(third)
            if done < 1:
                third = math.exp(low * high / ((1 - done) * high + done * low))
        return replace(plain, alpha=alpha, betas=(first, second, third))


def _classes() -> dict[str, type[Optimizer8bit]]:
    found = {name: _build(name, row) for name, row in _TABLE.items()}
    for name, base in list(found.items()):
        for bits in (8, 32):
            members = {"__doc__": f"``{name}`` with a state in {bits} bits.", "__module__": __name__, "_bits": bits}
            found[f"{name}{bits}bit"] = type(f"{name}{bits}bit", (base,), members)
    return found


_CLASSES = _classes()
globals().update(_CLASSES)
__all__ = ["GlobalOptimManager"]
__all__ += list(_CLASSES)


def __getattr__(name: str) -> type[Optimizer8bit]:
    """Tell type checkers of the classes of the table."""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
