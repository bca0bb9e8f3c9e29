"""Optimizers with 8-bit state beside the same in 32 bits, torch's own, and the paper's codebooks."""

import copy
import inspect
import math

import pytest
import torch
from torch import nn

from rung.core.errors import UsageError
from rung.nn import optim, stepping
from rung.nn.optim import GlobalOptimManager
from rung.training.optim import Adam, AdamW, AdamW8bit, AdEMAMix

NAMES = ["Adam", "AdamW", "AdEMAMix", "Lion", "LAMB", "SGD", "LARS", "RMSprop", "Adagrad"]
#: Beside the learning rate.
OPTIONS = {"SGD": {"momentum": 0.9}, "LARS": {"momentum": 0.9}}
RATES = {"SGD": 0.05, "LARS": 0.3, "LAMB": 0.02, "Lion": 1e-3, "AdEMAMix": 2e-3, "RMSprop": 1e-3, "Adagrad": 5e-2}


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


def trained(make, steps=40, model=None):
    """Losses of a small regression with the optimizer that ``make`` makes of parameters."""
    model = model or network()
    optimizer, generator = make(model.parameters()), torch.Generator().manual_seed(1)
    target = torch.randn(64, 64, generator=generator) / 8
    losses = []
    for _ in range(steps):
        x = torch.randn(64, 64, generator=generator)
        loss = (model(x) - x @ target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, optimizer, model


def of(name, bits):
    return lambda params: getattr(optim, f"{name}{bits}bit")(params, lr=RATES.get(name, 3e-3), **OPTIONS.get(name, {}))


@pytest.mark.parametrize("name", NAMES)
def test_eight_bits_train_like_32(name):
    exact, _, _ = trained(of(name, 32))
    coded, optimizer, model = trained(of(name, 8))
    last, want = sum(coded[-10:]), sum(exact[-10:])
    assert want < 0.9 * sum(exact[:10])
    assert abs(last / want - 1) < 0.03
    large = model[0].weight
    assert optimizer.state[large]["state1"].dtype == torch.uint8
    assert optimizer.state[model[0].bias]["state1"].dtype == torch.float32  # fewer than 4096 values


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda p: AdamW(p, 3e-3, weight_decay=0.1), lambda p: torch.optim.AdamW(p, 3e-3, weight_decay=0.1)),
        (
            lambda p: optim.SGD(p, 0.05, 0.9, weight_decay=0.1),
            lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.1),
        ),
        (lambda p: optim.RMSprop(p, 1e-3), lambda p: torch.optim.RMSprop(p, 1e-3)),
        (lambda p: optim.Adagrad(p, 1e-2, weight_decay=0.1), lambda p: torch.optim.Adagrad(p, 1e-2, weight_decay=0.1)),
    ],
)
def test_32_bits_are_torchs(ours, theirs):
    got, want = (trained(make, 20)[2] for make in (ours, theirs))
    for one, other in zip(got.parameters(), want.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["LAMB", "LARS"])
@pytest.mark.parametrize("bits", [8, 32])
def test_a_trust_ratio_bounds_the_update(name, bits):
    p = nn.Parameter(torch.ones(4096))
    p.grad = torch.randn(4096, generator=torch.Generator().manual_seed(1)) * 1e4
    optimizer = getattr(optim, f"{name}{bits}bit")([p], lr=1.0, max_unorm=0.02, **OPTIONS.get(name, {}))
    optimizer.step()
    assert float((p - 1).norm()) == pytest.approx(0.02 * 64, rel=1e-4 if name == "LARS" else 0.7)
    assert float(optimizer.state[p]["unorm_vec"]) > 0.02 * 64


def test_lion_moves_by_signs():
    p = nn.Parameter(torch.zeros(5000))
    p.grad = torch.linspace(-1, 1, 5000)
    optim.Lion8bit([p], lr=0.1).step()
    assert torch.equal(p, -0.1 * p.grad.sign())


def test_ademamix_schedules():
    p = nn.Parameter(torch.zeros(8))
    optimizer = AdEMAMix([p], alpha=5.0, t_alpha=10, t_beta3=10, betas=(0.9, 0.999, 0.9999))
    config = optimizer.config_of(optimizer.param_groups[0], p)
    early, late = optimizer.settings_at(1, config), optimizer.settings_at(10, config)
    assert early.alpha == pytest.approx(0.5)
    # the half-life of the slow mean grows evenly from that of the fast one
    half = [math.log(0.5) / math.log(beta) for beta in (0.9, early.betas[2], 0.9999)]
    assert half[1] == pytest.approx(0.9 * half[0] + 0.1 * half[2])
    assert (late.alpha, late.betas[2]) == (5.0, 0.9999)


@pytest.mark.parametrize("signed", [True, False])
def test_states_are_held_by_the_nearest_value(signed):
    x = torch.randn(5000, generator=torch.Generator().manual_seed(2)) ** 3
    x = x if signed else x.abs()
    x[256:512] = 0
    values = stepping.codebook(signed, x.device)
    codes, absmax = stepping.encode(x, values)
    decoded = stepping.decode(codes, absmax, values)
    scale = x[:4864].view(19, 256).abs().amax(1).repeat_interleave(256).clamp_min(1e-38)
    best = (x[:4864, None] - values * scale[:, None]).abs().amin(1)
    torch.testing.assert_close((x[:4864] - decoded[:4864]).abs() / scale, best / scale, rtol=0, atol=2 / 65535)
    assert not decoded[256:512].any()
    assert len(values.unique()) == 256


def test_the_state_is_a_quarter():
    p = nn.Parameter(torch.zeros(65536))
    p.grad = torch.ones_like(p)
    sizes = []
    for bits in (8, 32):
        optimizer = optim.AdamW([p], optim_bits=bits)
        optimizer.step()
        state = optimizer.state[p]
        sizes.append(sum(state[k].nbytes for k in state if k.startswith(("state", "absmax"))))
    assert sizes[0] <= 0.27 * sizes[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on_from_its_state_dictionary(name, tmp_path):
    _, first, model = trained(of(name, 8), 5)
    twin = copy.deepcopy(model)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = of(name, 8)(twin.parameters())
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        one.grad, other.grad = torch.ones_like(one), torch.ones_like(one)
    first.step()
    second.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_parameters_in_16_bits_and_with_strides():
    for p in (nn.Parameter(torch.ones(64, 128, dtype=torch.bfloat16)), nn.Parameter(torch.ones(128, 64).t())):
        p.grad = torch.ones_like(p)
        optimizer = AdamW8bit([p], lr=0.5, weight_decay=0.0)
        optimizer.step()
        torch.testing.assert_close(p.float(), torch.full((64, 128), 0.5))
        optimizer.load_state_dict(optimizer.state_dict())
        assert optimizer.state[p]["state1"].dtype == torch.uint8


def test_pieces_join(monkeypatch):
    results = []
    for piece in (1 << 20, 512):
        monkeypatch.setattr("rung.nn.stepping.PIECE", piece)
        p = nn.Parameter(torch.linspace(-1, 1, 5001))
        optimizer = optim.AdEMAMix8bit([p], lr=0.1)
        for step in range(3):
            p.grad = torch.sin(torch.arange(5001.0) * (step + 1))
            optimizer.step()
        results.append(p)
    assert torch.equal(*results)


def test_settings_of_single_parameters():
    a, b, c = (nn.Parameter(torch.ones(5000)) for _ in range(3))
    GlobalOptimManager.get_instance().override_config(b, "optim_bits", 32)
    optimizer = AdamW8bit([{"params": [a, b]}, {"params": [c], "lr": 0.0, "optim_bits": 32}])
    for p in (a, b, c):
        p.grad = torch.ones(5000)
    optimizer.step()
    kinds = [optimizer.state[p]["state1"].dtype for p in (a, b, c)]
    assert kinds == [torch.uint8, torch.float32, torch.float32]
    assert torch.equal(c, torch.ones(5000))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: Adam(p, lr=-1.0), "lr is -1.0"),
        (lambda p: Adam(p, betas=(0.9, 1.0)), "betas"),
        (lambda p: Adam(p, amsgrad=True), "amsgrad=True would change nothing"),
        (lambda p: Adam(p, optim_bits=4), "optim_bits is 4"),
        (lambda p: Adam(p, is_paged=True), "managed memory of CUDA"),
        (lambda p: optim.SGD8bit(p, 0.1), "Without momentum"),
        (lambda p: optim.LAMB8bit(p, bias_correction=False), "LAMB corrects"),
    ],
)
def test_bad_arguments(make, says):
    with pytest.raises(UsageError, match=says):
        make([nn.Parameter(torch.ones(3))])


def test_a_setting_that_no_optimizer_goes_by_is_refused():
    manager, parameter = GlobalOptimManager.get_instance(), nn.Parameter(torch.ones(3))
    with pytest.raises(UsageError, match=r"skip_zeros would change nothing here[\s\S]*optim_bits"):
        manager.override_config(parameter, key_value_dict={"lr": 0.1, "skip_zeros": True})
    assert manager.of(parameter) == {}


def test_a_state_of_another_model_is_refused():
    p, q = nn.Parameter(torch.ones(5000)), nn.Parameter(torch.ones(6000))
    p.grad = torch.ones_like(p)
    first = AdamW8bit([p])
    first.step()
    with pytest.raises(UsageError, match="has 5000 values, the parameter 6000"):
        AdamW8bit([q]).load_state_dict(first.state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_states_are_those_of_bitsandbytes(name):
    bnb = pytest.importorskip("bitsandbytes")
    states = []
    for module in (optim, bnb.optim):
        p = nn.Parameter(torch.linspace(-1, 1, 5000))
        make = getattr(module, f"{name}8bit")
        optimizer = make([p], lr=RATES.get(name, 3e-3), **OPTIONS.get(name, {}))
        for step in range(3):
            p.grad = torch.sin(torch.arange(5000.0) * (step + 1)) ** 9  # many values near zero
            optimizer.step()
        states.append(optimizer.state[p])
    for part in ("state1", "state2") if "state2" in states[1] and states[1]["state2"] is not None else ("state1",):
        apart = states[0][part].view(-1) != states[1][part].view(-1)
        assert apart.float().mean() < 1e-3  # a value at the edge of two codes may fall either way


def test_arguments_are_those_of_bitsandbytes():
    bnb = pytest.importorskip("bitsandbytes")
    for name in NAMES:
        theirs = set(inspect.signature(getattr(bnb.optim, name)).parameters) - {"args"}
        assert theirs <= set(inspect.signature(getattr(optim, name)).parameters), name
