"""CUDA graphs on a simulated card: captured once, replayed with what the inputs hold by then."""

import gc

import pytest
import torch

from tests.support.devices import simulated_card

card = simulated_card("a100", autouse=True)


def test_a_replay_computes_with_new_inputs():
    layer = torch.nn.Linear(8, 8, device="cuda")
    inputs = torch.ones(2, 8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        with torch.cuda.graph(graph):
            assert torch.cuda.is_current_stream_capturing()
            result = torch.relu(layer(inputs)).view(4, 4)
            total = torch.zeros(4, 4, device="cuda").add_(result)
        assert not torch.cuda.is_current_stream_capturing()
        inputs.copy_(torch.arange(16.0).view(2, 8))
        graph.replay()
        expected = torch.relu(layer(inputs)).view(4, 4)
    assert torch.equal(result, expected)
    assert torch.equal(total, expected)
    graph.replay()
    assert torch.equal(total, expected)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_replay_takes_no_memory_and_the_graph_keeps_its_own(mode):
    inputs = torch.ones(1024, 256, device="cuda")
    graph = torch.cuda.CUDAGraph()
    before = torch.cuda.memory_allocated()
    with mode(), torch.cuda.graph(graph):
        result = (inputs * 2).softmax(-1).sum()
    allocated = torch.cuda.memory_allocated()
    assert allocated - before >= 2**20
    inputs.fill_(3)
    graph.replay()
    assert torch.cuda.memory_allocated() == allocated
    assert result.item() == pytest.approx(1024)
    graph.reset()
    gc.collect()
    assert torch.cuda.memory_allocated() - before == 512


def test_a_training_step_as_a_graph():
    torch.manual_seed(0)
    model, twin = (torch.nn.Linear(4, 4, device="cuda") for _ in range(2))
    twin.load_state_dict(model.state_dict())
    inputs = torch.ones(3, 4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(inputs).square().sum().backward()
    for value in (2.0, 3.0):
        inputs.fill_(value)
        graph.replay()
        twin.zero_grad()
        twin(inputs).square().sum().backward()
        assert torch.allclose(model.weight.grad, twin.weight.grad)


def test_chance_goes_on_in_replays():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = torch.rand(8, device="cuda")
    graph.replay()
    first = drawn.clone()
    graph.replay()
    assert not torch.equal(first, drawn)
    torch.cuda.manual_seed(7)
    expected = torch.rand(8, device="cuda")
    torch.cuda.manual_seed(7)
    graph.replay()
    assert torch.equal(drawn, expected)


@pytest.mark.parametrize("wait", [torch.Tensor.item, lambda value: value.cpu(), torch.Tensor.nonzero])
def test_what_waits_for_the_card_is_not_captured(wait):
    inputs = torch.ones(1, device="cuda")
    graph = torch.cuda.graph(torch.cuda.CUDAGraph())
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"), graph:
        wait(inputs)
    assert wait(inputs) is not None


def test_make_graphed_callables():
    torch.manual_seed(0)
    model, twin = (torch.nn.Linear(4, 4, device="cuda") for _ in range(2))
    twin.load_state_dict(model.state_dict())
    graphed = torch.cuda.make_graphed_callables(model, (torch.ones(2, 4, device="cuda"),))
    inputs = torch.arange(8.0, device="cuda").view(2, 4)
    result = graphed(inputs)
    result.sum().backward()
    expected = twin(inputs)
    expected.sum().backward()
    assert torch.allclose(result, expected)
    assert torch.allclose(model.weight.grad, twin.weight.grad)
