"""Optimisers whose state is held in 8 bits; class names, arguments and state dictionaries are bitsandbytes'.

Tensors of fewer than ``min_8bit_size`` values keep a state in 32 bits. What a parameter is to get instead of the
optimiser's settings goes into its group, or through ``GlobalOptimManager``. ``Name8bit`` and ``Name32bit`` are
``Name`` with ``optim_bits`` 8 and 32.
"""

from __future__ import annotations

import math
from dataclasses import replace
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
    Settings,
)


def _defaults(lr: float, betas: Any, eps: float, weight_decay: float, **more: Any) -> dict[str, Any]:
    return {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, **more}


def _refuse(**options: Any) -> None:
    """bitsandbytes takes these arguments too and ignores them."""
    for name, value in options.items():
        if value:
            raise UsageError(
                f"{name}={value} would change nothing here", (), [f"leave {name} out"], code="option-without-effect"
            )


class Adam(Optimizer8bit):
    """Adam (arXiv:1412.6980); weight decay is decoupled, as in ``AdamW``."""

    _rule = ADAM

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        optim_bits: int = 32,
        min_8bit_size: int = 4096,
        is_paged: bool = False,
    ) -> None:
        _refuse(amsgrad=amsgrad)
        super().__init__(params, _defaults(lr, betas, eps, weight_decay), optim_bits, min_8bit_size, is_paged=is_paged)


class AdamW(Adam):
    """Adam with decoupled weight decay (arXiv:1711.05101)."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        optim_bits: int = 32,
        min_8bit_size: int = 4096,
        is_paged: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, optim_bits, min_8bit_size, is_paged)


class AdEMAMix(Optimizer8bit):
    """AdEMAMix (arXiv:2409.03137): Adam with a second, slow mean, whose share is ``alpha``.

    ``t_alpha`` and ``t_beta3`` are the steps in which alpha and the third beta reach their values; none: at once.
    """

    _rule = ADEMAMIX

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        alpha: float = 5.0,
        t_alpha: int | None = None,
        t_beta3: int | None = None,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        optim_bits: int = 32,
        min_8bit_size: int = 4096,
        is_paged: bool = False,
    ) -> None:
        defaults = _defaults(lr, betas, eps, weight_decay, alpha=alpha, t_alpha=t_alpha, t_beta3=t_beta3)
        super().__init__(params, defaults, optim_bits, min_8bit_size, is_paged=is_paged)

    def _at(self, step: int, config: dict[str, Any]) -> Settings:
        plain = super()._at(step, config)
        alpha, (first, second, third) = plain.alpha, plain.betas
        if config.get("t_alpha"):
            alpha = min(step * alpha / config["t_alpha"], alpha)
        if config.get("t_beta3") and first > 0:
            # halfway in the logarithm of the half-life: the paper's equation for beta3
            done, low, high = step / config["t_beta3"], math.log(first), math.log(third)
            if done < 1:
                third = math.exp(low * high / ((1 - done) * high + done * low))
        return replace(plain, alpha=alpha, betas=(first, second, third))


class Lion(Optimizer8bit):
    """Lion (arXiv:2302.06675)."""

    _rule = LION

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        optim_bits: int = 32,
        min_8bit_size: int = 4096,
        is_paged: bool = False,
    ) -> None:
        super().__init__(params, _defaults(lr, betas, 0.0, weight_decay), optim_bits, min_8bit_size, is_paged=is_paged)


class LAMB(Optimizer8bit):
    """LAMB (arXiv:1904.00962): Adam whose update has at most ``max_unorm`` times the norm of the parameter."""

    _rule = ADAM

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        optim_bits: int = 32,
        min_8bit_size: int = 4096,
        max_unorm: float = 1.0,
    ) -> None:
        _refuse(amsgrad=amsgrad)
        if not bias_correction or not adam_w_mode:
            raise UsageError("LAMB corrects the start of its means and decouples weight decay; neither can be left out")
        super().__init__(params, _defaults(lr, betas, eps, weight_decay), optim_bits, min_8bit_size, max_unorm)


class SGD(Optimizer8bit):
    """Stochastic gradient descent with momentum."""

    _rule = MOMENTUM

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        optim_bits: int = 32,
        min_8bit_size: int = 4096,
    ) -> None:
        _needs_momentum(momentum, dampening, nesterov)
        super().__init__(params, _defaults(lr, (momentum, dampening), 0.0, weight_decay), optim_bits, min_8bit_size)


class LARS(Optimizer8bit):
    """LARS (arXiv:1708.03888): momentum whose update has at most ``max_unorm`` times the norm of the parameter."""

    _rule = MOMENTUM

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        optim_bits: int = 32,
        min_8bit_size: int = 4096,
        max_unorm: float = 0.02,
    ) -> None:
        _needs_momentum(momentum, dampening, nesterov)
        defaults = _defaults(lr, (momentum, dampening), 0.0, weight_decay)
        super().__init__(params, defaults, optim_bits, min_8bit_size, max_unorm)


def _needs_momentum(momentum: float, dampening: float, nesterov: bool) -> None:
    _refuse(dampening=dampening, nesterov=nesterov)
    if momentum == 0:
        raise UsageError(
            "Without momentum there is no state to hold in 8 bits", (), ["torch.optim.SGD", "momentum=0.9"]
        )


class RMSprop(Optimizer8bit):
    """RMSprop; ``alpha`` is how much of the mean of squares is kept."""

    _rule = RMSPROP

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        optim_bits: int = 32,
        min_8bit_size: int = 4096,
    ) -> None:
        _refuse(momentum=momentum, centered=centered)
        super().__init__(params, _defaults(lr, (alpha, momentum), eps, weight_decay), optim_bits, min_8bit_size)


class Adagrad(Optimizer8bit):
    """Adagrad."""

    _rule = ADAGRAD

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        optim_bits: int = 32,
        min_8bit_size: int = 4096,
    ) -> None:
        _refuse(lr_decay=lr_decay, initial_accumulator_value=initial_accumulator_value)
        super().__init__(params, _defaults(lr, (0.0, 0.0), eps, weight_decay), optim_bits, min_8bit_size)


class Adam8bit(Adam):
    """``Adam`` with a state in 8 bits."""

    _bits = 8


class Adam32bit(Adam):
    """``Adam`` with a state in 32 bits."""

    _bits = 32


class AdamW8bit(AdamW):
    """``AdamW`` with a state in 8 bits."""

    _bits = 8


class AdamW32bit(AdamW):
    """``AdamW`` with a state in 32 bits."""

    _bits = 32


class AdEMAMix8bit(AdEMAMix):
    """``AdEMAMix`` with a state in 8 bits."""

    _bits = 8


class AdEMAMix32bit(AdEMAMix):
    """``AdEMAMix`` with a state in 32 bits."""

    _bits = 32


class Lion8bit(Lion):
    """``Lion`` with a state in 8 bits."""

    _bits = 8


class Lion32bit(Lion):
    """``Lion`` with a state in 32 bits."""

    _bits = 32


class LAMB8bit(LAMB):
    """``LAMB`` with a state in 8 bits."""

    _bits = 8


class LAMB32bit(LAMB):
    """``LAMB`` with a state in 32 bits."""

    _bits = 32


class SGD8bit(SGD):
    """``SGD`` with a state in 8 bits."""

    _bits = 8


class SGD32bit(SGD):
    """``SGD`` with a state in 32 bits."""

    _bits = 32


class LARS8bit(LARS):
    """``LARS`` with a state in 8 bits."""

    _bits = 8


class LARS32bit(LARS):
    """``LARS`` with a state in 32 bits."""

    _bits = 32


class RMSprop8bit(RMSprop):
    """``RMSprop`` with a state in 8 bits."""

    _bits = 8


class RMSprop32bit(RMSprop):
    """``RMSprop`` with a state in 32 bits."""

    _bits = 32


class Adagrad8bit(Adagrad):
    """``Adagrad`` with a state in 8 bits."""

    _bits = 8


class Adagrad32bit(Adagrad):
    """``Adagrad`` with a state in 32 bits."""

    _bits = 32


__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "AdEMAMix",
    "AdEMAMix8bit",
    "AdEMAMix32bit",
    "Adagrad",
    "Adagrad8bit",
    "Adagrad32bit",
    "Adam",
    "Adam8bit",
    "Adam32bit",
    "AdamW",
    "AdamW8bit",
    "AdamW32bit",
    "GlobalOptimManager",
    "LAMB8bit",
    "LAMB32bit",
    "LARS8bit",
    "LARS32bit",
    "Lion",
    "Lion8bit",
    "Lion32bit",
    "RMSprop",
    "RMSprop8bit",
    "RMSprop32bit",
    "SGD8bit",
    "SGD32bit",
]
