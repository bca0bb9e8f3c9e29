"""``torch.compile`` on a simulated card: skipped with a word, never broken."""

from __future__ import annotations

import warnings

import pytest
import torch

import rung


def double(x):
    return x * 2 + torch.ones(2, device=x.device)


def test_what_is_compiled_runs_as_it_is_written_and_that_is_said_once():
    with rung.simulate("v100"):
        with pytest.warns(
            UserWarning, match="torch.compile is not simulated: what it compiles runs as it is written.$"
        ):
            there = torch.compile(double)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            layer = torch.compile(torch.nn.Linear(2, 2).cuda(), mode="reduce-overhead")
            assert there(torch.ones(2, device="cuda")).tolist() == [3, 3]
            assert layer(torch.ones(1, 2, device="cuda")).device.type == "cuda"
            assert torch.cuda.memory_allocated() > 0

            @torch.compile(fullgraph=True)
            def decorated(x):
                return x + 1

            assert decorated(torch.ones(2, device="cuda")).device.type == "cuda"
        layer.compile()
        with pytest.raises(RuntimeError, match="same device"):
            layer(torch.ones(1, 2))
    assert there(torch.ones(2)).tolist() == [3, 3]


def test_what_was_compiled_before_runs_inside():
    before = torch.compile(double, backend="eager")
    assert before(torch.ones(2)).tolist() == [3, 3]
    with rung.simulate("v100"):
        assert before(torch.ones(2, device="cuda")).device.type == "cuda"
    assert before(torch.ones(2)).device.type == "cpu"


def test_a_card_that_the_compiler_is_too_new_for():
    with rung.simulate("p2200"), pytest.warns(UserWarning, match="On the card it fails: torch.compile's Triton needs"):
        torch.compile(double)


def test_outside_it_compiles_again():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    with rung.simulate("v100"), warnings.catch_warnings(action="ignore"):
        torch.compile(double, backend=backend)(torch.ones(2, device="cuda"))
    assert graphs == []
    torch._dynamo.reset()
    torch.compile(double, backend=backend)(torch.ones(2))
    assert len(graphs) == 1
