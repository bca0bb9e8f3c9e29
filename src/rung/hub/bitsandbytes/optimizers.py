"""Steps of bitsandbytes' optimizers, by the rules of ``rung.nn.optim``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rung.core.errors import UsageError
from rung.hub.bitsandbytes.blocks import quantize_blockwise
from rung.nn import stepping
from rung.nn.stepping import BLOCK

_RULES = {
    "adam": stepping.ADAM,
    "lamb": stepping.ADAM,
    "ademamix": stepping.ADEMAMIX,
    "momentum": stepping.MOMENTUM,
    "lars": stepping.MOMENTUM,
    "lion": stepping.LION,
    "rmsprop": stepping.RMSPROP,
    "adagrad": stepping.ADAGRAD,
}


def optimizer_update_32bit(
    optimizer_name: str,
    g: Tensor,
    p: Tensor,
    state1: Tensor,
    state2: Tensor | None,
    unorm_vec: Tensor | None,
    max_unorm: float,
    param_norm: float,
    beta1: float,
    beta2: float,
    beta3: float,
    alpha: float,
    eps: float,
    weight_decay: float,
    step: int,
    lr: float,
    gnorm_scale: float,
    skip_zeros: bool = False,
) -> None:
    """Changes the parameter and its states in place."""
    _refuse(skip_zeros)
    settings = stepping.Settings(lr, (beta1, beta2, beta3), eps, weight_decay, alpha, step)
    limit = max_unorm * param_norm if max_unorm > 0 else None
    norm = _update(optimizer_name, g, p, {"state1": state1, "state2": state2}, settings, gnorm_scale, limit)
    if limit is not None and unorm_vec is not None:
        unorm_vec.fill_(norm)


def optimizer_update_8bit_blockwise(
    optimizer_name: str,
    g: Tensor,
    p: Tensor,
    state1: Tensor,
    state2: Tensor | None,
    beta1: float,
    beta2: float,
    beta3: float,
    alpha: float,
    eps: float,
    step: int,
    lr: float,
    qmap1: Tensor,
    qmap2: Tensor | None,
    absmax1: Tensor,
    absmax2: Tensor | None,
    weight_decay: float,
    gnorm_scale: float,
    skip_zeros: bool = False,
) -> None:
    """The same with states in blocks of 256; their codes are those of ``quantize_blockwise``."""
    _refuse(skip_zeros)
    settings = stepping.Settings(lr, (beta1, beta2, beta3), eps, weight_decay, alpha, step)
    state: dict[str, Any] = {"state1": state1, "qmap1": qmap1, "absmax1": absmax1}
    if state2 is not None:
        state |= {"state2": state2, "qmap2": qmap2, "absmax2": absmax2}
    _update(optimizer_name, g, p, state, settings, gnorm_scale, None)


def _refuse(skip_zeros: bool) -> None:
    if skip_zeros:
        raise UsageError(
            "rung does not compute skip_zeros, which leaves values alone whose gradient is exactly zero",
            ["bitsandbytes computes it on CUDA alone"],
            ["skip_zeros=False"],
        )


def _update(
    name: str, g: Tensor, p: Tensor, state: dict[str, Any], settings: Any, scale: float, limit: float | None
) -> float:
    """A step, a piece at a time where nothing asks for the norm of the whole; returns that norm."""
    rule, norm = _RULES[name], 0.0
    flat, gradient = p.detach().contiguous().view(-1), g.reshape(-1)
    for part in stepping.pieces(len(flat), whole=limit is not None):
        states = stepping.read_states(state, part, rule)
        norm = stepping.advance(rule, flat[part], gradient[part].float() * scale, states, settings, limit)
        stepping.write_states(state, part, rule, states, _encode)
    if flat.data_ptr() != p.data_ptr():
        p.detach().copy_(flat.view_as(p))
    return norm


def _encode(values: Tensor, code: Tensor) -> tuple[Tensor, Tensor]:
    return quantize_blockwise(values, code, BLOCK)
