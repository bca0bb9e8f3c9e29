"""How splats grow: numbers and places after one change, by either strategy, and what Adam keeps of them."""

import math
from types import SimpleNamespace

import pytest
import torch

from rung.splats.training.initialization import apart
from rung.splats.training.model import Corrections, Model
from rung.splats.training.settings import Beat
from rung.splats.training.strategies import Classic, MarkovChain, drawn
from tests.splats.training import tiny

CPU = torch.device("cpu")


def model(count=10, **values):
    """Splats that Adam has seen; ``values`` replace rows, by name."""
    result = Model(tiny.cloud(count), CPU)
    for state in (*result.first.values(), *result.second.values()):
        state += 1
    with torch.no_grad():
        for name, rows in values.items():
            for row, value in rows.items():
                result.values[name][row] = value
    return result


def chance():
    return torch.Generator().manual_seed(0)


def changed(strategy, splats, done=0.25):
    """After one change that is due, without noise."""
    strategy.change(splats, 1000, done - 0.004, done, 0.0, chance())
    return splats


@pytest.mark.parametrize(("cap", "count"), [(40, 22), (21, 21), (20, 20)])
def test_splats_come_up_to_the_cap_and_no_further(cap, count):
    assert len(changed(MarkovChain(cap), model(20))) == count


def test_splats_that_went_out_move_to_others_and_begin_anew():
    splats = model(4, logits={0: -9.0, 1: -9.0, 2: 3.0, 3: -4.0})
    before = {name: value.detach().clone() for name, value in splats.values.items()}
    changed(MarkovChain(4), splats)
    assert all(
        any(torch.equal(splats.values["means"][row], before["means"][near]) for near in (2, 3)) for row in (0, 1)
    )
    assert float(splats.values["logits"].detach().sigmoid().min()) > 0.005
    for row in range(4):
        known = torch.equal(splats.values["logits"][row], before["logits"][row])
        assert all(bool((state[row] == (1 if known else 0)).all()) for state in splats.first.values())


def test_splats_are_drawn_as_often_as_they_weigh():
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0, 4.0, 0.0])
    found = torch.bincount(drawn(weights, 80_000, chance()), minlength=6)
    assert found[[0, 3, 5]].tolist() == [0, 0, 0]
    assert torch.allclose(found / 10_000, weights, atol=0.1)  # five standard deviations
    assert torch.equal(drawn(weights, 9, chance()), drawn(weights, 9, chance()))


def test_small_weights_behind_large_ones_are_told_apart():
    weights = torch.ones(4096)
    weights[0] = 2.0**24  # above it float32 counts in twos: rounded to even, two of four would have no place
    found = drawn(weights, 4_000_000, chance())
    first = (found[found > 0] % 4 < 2).double().mean()
    assert 0.4 < float(first) < 0.6  # of about a thousand


def test_more_splats_than_torch_draws_from():
    weights = torch.full((2**24 + 9,), 1e-8)
    weights[[7, -1]] = 2.0**24
    assert set(drawn(weights, 50, chance()).tolist()) == {7, 2**24 + 8}


def test_only_faint_splats_wander_and_large_and_opaque_ones_are_dear():
    splats = model(2, logits={0: 9.0, 1: -9.0})
    before = splats.values["means"].detach().clone()
    MarkovChain(2).change(splats, 1, 0.0, 0.0, 1e-4, chance())
    moved = (splats.values["means"].detach() - before).norm(dim=1)
    assert float(moved[0]) < 1e-6 < 1e-3 < float(moved[1])
    opacities, scales = torch.tensor([0.2, 0.4]), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert float(MarkovChain(2).cost(opacities, scales)) == pytest.approx(0.01 * 0.3 + 0.01 * 3.5)


def pulled(splats, pulls, cap):
    """A strategy that has watched one step in which splats were pulled at so, in a picture of 200 x 100."""
    strategy, screen = Classic(cap), torch.zeros(len(splats), 2)
    screen.grad = torch.tensor(pulls)
    projection = SimpleNamespace(radii=torch.ones(len(splats), 2, dtype=torch.int32))
    strategy.watch(screen, projection, SimpleNamespace(width=200, height=100))
    return strategy


def test_small_splats_are_copied_and_large_ones_divided():
    small, large = math.log(0.009), math.log(0.05)
    splats = model(3, log_scales={0: small, 1: large, 2: small})
    before = splats.values["means"].detach().clone()
    # in a picture whose sides go from -1 to 1 a gradient of pixels counts half of their number: 2.5e-4 and 1.5e-4
    changed(pulled(splats, [[2.5e-6, 0.0], [0.0, 5e-6], [0.0, 3e-6]], 100), splats)
    assert len(splats) == 5
    logs, means = splats.values["log_scales"].detach(), splats.values["means"].detach()
    assert torch.equal(means[:3], before[[0, 2, 0]])
    assert torch.allclose(logs[3:], torch.full((2, 3), math.log(0.05 / 1.6)))
    assert not torch.equal(means[3], means[4])
    assert all(bool((state[:2] == 1).all()) and not bool(state[2:].any()) for state in splats.first.values())


def test_those_that_are_pulled_at_most_grow_where_there_is_room_for_few():
    splats = model(3, log_scales=dict.fromkeys(range(3), math.log(0.009)))
    before = splats.values["means"].detach().clone()
    changed(pulled(splats, [[3e-6, 0.0], [9e-6, 0.0], [5e-6, 0.0]], 4), splats)
    assert torch.equal(splats.values["means"].detach(), before[[0, 1, 2, 1]])


@pytest.mark.parametrize(("done", "left"), [(0.05, 2), (0.2, 1)])
def test_faint_splats_go_and_too_large_ones_once_opacities_began_anew(done, left):
    splats = model(3, logits={0: -9.0}, log_scales={1: math.log(0.2), 2: math.log(0.05)})
    strategy = pulled(splats, [[0.0, 0.0]] * 3, 100)
    strategy.change(splats, 1000, done - 0.004, done, 0.0, chance())
    assert len(splats) == left


def test_a_short_run_leaves_steps_between_changes():
    beat, fell, last = Beat(1 / 300, 0, 1), [], 0
    for step in range(1, 101):
        if beat.falls(step, (step - 1) / 100, step / 100, last):
            fell.append(last := step)
    assert fell == list(range(10, 100, 10))


def test_corrections_turn_and_mix_as_their_matrices_say():
    fixed = Corrections(1, True, True, CPU)
    with torch.no_grad():
        fixed.values["pose"][0] = torch.tensor([0.0, 0.0, math.pi / 2, 0.0, 0.0, 0.0])
        fixed.values["exposure"][0] = torch.tensor([[0.0, 2, 0, 0.1], [0, 0, 3, 0], [1, 0, 0, 0]])
    turned = fixed.moved(0, torch.eye(4)).detach()
    assert torch.allclose(turned[:3, :3] @ torch.tensor([1.0, 0, 0]), torch.tensor([0.0, 1, 0]), atol=1e-6)
    mixed = fixed.exposed(0, torch.tensor([[[1.0, 10, 100]]])).detach()
    assert torch.allclose(mixed, torch.tensor([[[20.1, 300, 1]]]))


def test_two_points_are_as_far_apart_as_they_are():
    assert apart(torch.tensor([[0.0, 0, 0], [0, 3, 4]]).numpy()).tolist() == pytest.approx([5, 5])


def test_harmonics_above_the_degree_do_not_learn():
    cloud = tiny.cloud(2)
    wide = cloud._replace(harmonics=cloud.harmonics.repeat(16, axis=1))
    splats = Model(wide, CPU)
    for value in splats.values.values():
        value.grad = torch.ones_like(value)
    splats.step({"base": 1e-2, "harmonics": 1e-3}, degree=1)
    moved = (splats.values["harmonics"].detach() - torch.from_numpy(wide.harmonics)).abs().amax(dim=(0, 2))
    assert moved.tolist() == pytest.approx([1e-2] + [1e-3] * 3 + [0.0] * 12, abs=1e-6)
