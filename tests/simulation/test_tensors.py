"""Where tensors lie on a simulated card, how they move, and that everything is put back."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch

import rung
from rung.core.errors import RungError, UnknownDevice, UsageError
from tests.support.devices import simulated_card

CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")


card = simulated_card("Quadro P2200")


WAYS = {
    "cuda()": lambda: torch.ones(2).cuda(),
    "cuda(0)": lambda: torch.ones(2).cuda(0),
    "to(name)": lambda: torch.ones(2).to("cuda"),
    "to(device, dtype)": lambda: torch.ones(2).to(CUDA, torch.float16),
    "to(device=)": lambda: torch.ones(2).to(device="cuda:0", non_blocking=True),
    "to(0)": lambda: torch.ones(2).to(0),
    "to(other)": lambda: torch.ones(2).to(torch.zeros(1, device="cuda")),
    "type": lambda: torch.ones(2).type("torch.cuda.HalfTensor"),
    "device=0": lambda: torch.zeros(2, device=0),
    "device(0)": lambda: torch.zeros(2, device=torch.device(0)),
    "device(cuda, 0)": lambda: torch.zeros(2).to(torch.device("cuda", 0)),
    "device(type=)": lambda: torch.zeros(2).to(torch.device(type="cuda", index=0)),
    "accelerator": lambda: torch.zeros(2).to(torch.accelerator.current_accelerator()),
    "tensor": lambda: torch.tensor([1.0], device="cuda"),
    "as_tensor": lambda: torch.as_tensor(torch.ones(2), device="cuda"),
    "arange": lambda: torch.arange(3, device="cuda"),
    "randn": lambda: torch.randn(3, device="cuda", dtype=torch.bfloat16),
    "like": lambda: torch.zeros_like(torch.ones(2), device="cuda"),
    "new": lambda: torch.zeros(1, device="cuda").new_ones(3),
    "new device": lambda: torch.zeros(1).new_ones(3, device="cuda"),
    "layer": lambda: torch.nn.Linear(2, 2, device="cuda").weight,
    "module.cuda()": lambda: torch.nn.Linear(2, 2).cuda().weight,
    "module.to(0)": lambda: torch.nn.Linear(2, 2).to(0).weight,
    "module.to(device=0)": lambda: torch.nn.Linear(2, 2).to(device=0, dtype=torch.float16).weight,
    "deepcopy": lambda: copy.deepcopy(torch.nn.Linear(2, 2, device="cuda")).weight,
    "pickle": lambda: pickle.loads(pickle.dumps(torch.ones(2, device="cuda"))),
    "view": lambda: torch.ones(4, device="cuda").view(2, 2)[0],
    "product": lambda: torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda"),
    "host number": lambda: torch.ones(2, device="cuda") + torch.tensor(1.0),
    "host index": lambda: torch.ones(2, device="cuda")[torch.tensor([1])],
    "one_hot": lambda: torch.nn.functional.one_hot(torch.tensor([0, 2], device="cuda")),
    "sparse": lambda: torch.eye(3).to_sparse().cuda(),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_to_the_card_ends_there(card, way):
    result = way()
    assert result.device == CUDA
    assert result.is_cuda
    assert not result.is_cpu
    assert result.get_device() == 0
    assert result.type().startswith("torch.cuda.")
    assert result.cpu().device == CPU


def test_what_stays_on_the_host_says_so(card):
    there = torch.ones(2, device="cuda")
    for result in (torch.ones(2), there.cpu(), there.to("cpu"), torch.zeros_like(there, device="cpu"), torch.tensor(1)):
        assert result.device == CPU
        assert not result.is_cuda
    assert torch.empty(2, device="meta").cuda is not None
    assert torch.zeros(2, device="meta").device.type == "meta"


def test_the_class_of_devices_is_the_one_that_it_was():
    real = torch.device
    with rung.simulate("v100"):
        inside = torch.device
        assert torch.device(0) == real("cuda", 0)
        assert isinstance(real("cpu"), torch.device)
        assert not isinstance("cpu", torch.device)
        assert {real: "known"}[torch.device] == {torch.device: "known"}[type(real("cpu"))] == "known"
        assert torch.device | None
        assert pickle.loads(pickle.dumps(torch.device("cuda:0"))) == CUDA
        with torch.device(0):
            assert torch.zeros(1).device == CUDA
    assert torch.device is real
    assert inside("cpu") == CPU  # a module that was imported inside has it still
    if not (torch.version.cuda or torch.version.hip):  # builds for GPUs take a number without one too
        with pytest.raises(RuntimeError):
            inside(0)


def test_a_copy_is_a_copy_and_nothing_is_copied_twice(card):
    host = torch.ones(2)
    there = host.cuda()
    there.add_(1)
    assert host.tolist() == [1, 1]
    assert there.cuda() is there
    assert host.cpu() is host


def test_gradients_come_back_to_where_their_tensor_lies(card):
    host = torch.arange(3.0, requires_grad=True)
    (host.cuda() * torch.tensor([1.0, 2.0, 3.0], device="cuda")).sum().backward()
    assert host.grad.device == CPU
    assert host.grad.tolist() == [1, 2, 3]
    there = torch.ones(3, device="cuda", requires_grad=True)
    (there.cpu() * 2).sum().backward()
    assert there.grad.device == CUDA


def test_moving_a_module_keeps_its_parameters_and_their_ties(card):
    layer = torch.nn.Linear(3, 3)
    pair = torch.nn.Sequential(layer, torch.nn.Linear(3, 3))
    pair[1].weight = layer.weight
    before = layer.weight
    pair.cuda()
    assert pair[0].weight is pair[1].weight is before
    assert type(before) is torch.nn.Parameter


def test_a_training_step_is_exact():
    def step(kind):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to(kind)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        inputs = torch.linspace(-1, 1, 24).view(3, 8).to(kind)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        assert model[0].weight.grad.device.type == kind
        return [p.detach().cpu().clone() for p in model.parameters()]

    expected = step("cpu")
    with rung.simulate("v100"):
        got = step("cuda")
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def test_tensors_on_two_devices_do_not_mix():
    layer = torch.nn.Linear(4, 4)
    with rung.simulate("v100"):
        layer.cuda()
        with pytest.raises(
            RuntimeError, match=r"Expected all tensors to be on the same device.*mat1.*wrapper_CUDA_addmm"
        ):
            layer(torch.ones(2, 4))
        with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu!"):
            layer.weight + torch.ones(4)
        with pytest.raises(RuntimeError, match=r"index.*wrapper_CUDA__index_select"):
            torch.nn.Embedding(4, 4).cuda()(torch.tensor([1]))
        with pytest.raises(RuntimeError, match=r"target is on cpu.*wrapper_CUDA_nll_loss_forward"):
            torch.nn.functional.cross_entropy(torch.ones(2, 3, device="cuda"), torch.tensor([0, 1]))
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            layer.weight.detach().numpy()
        assert layer.weight.numpy(force=True).shape == (4, 4)


def test_lengths_of_sequences_stay_on_the_host(card):
    layer = torch.nn.GRU(4, 4, batch_first=True).cuda()
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(2, 3, 4, device="cuda"), [3, 2], batch_first=True)
    assert (packed.data.device, packed.batch_sizes.device) == (CUDA, CPU)
    assert layer(packed)[0].data.device == CUDA
    assert layer(torch.ones(2, 3, 4, device="cuda"))[0].device == CUDA


def test_the_default_device_and_the_block_of_one(card):
    with torch.device("cuda"):
        assert torch.zeros(2).device == CUDA
        assert torch.nn.Linear(2, 2).weight.device == CUDA
        assert torch.zeros(2, device="cpu").device == CPU
    assert torch.zeros(2).device == CPU
    torch.set_default_device("cuda")
    assert torch.zeros(2).device == CUDA == torch.get_default_device()
    torch.set_default_device(None)


@pytest.mark.parametrize("default", ["cpu", "cuda"])
def test_a_default_device_moves_nothing_that_names_its_own(card, default):
    """Under a function mode torch looks ``to`` up by name and comes back through the patched one."""
    there, here = torch.ones(4, device="cuda"), torch.ones(4)
    with torch.device(default), torch.device(default):
        assert there.to("cuda:0").device == there.to(torch.float16).device == (there >= 0).to("cuda").device == CUDA
        assert here.to("cuda").device == here.cuda().device == CUDA
        assert there.to("cpu").device == there.cpu().device == here.to(here).device == CPU
        assert there.to("cuda", torch.float64, copy=True).dtype == torch.float64


def test_a_default_device_that_is_left_is_taken_back():
    with rung.simulate("v100"):
        torch.set_default_device("cuda")
    assert torch.zeros(2).device == CPU


def test_files_remember_the_card_and_come_where_they_are_asked(card, tmp_path):
    file = io.BytesIO()
    torch.save({"there": torch.arange(3.0, device="cuda"), "host": torch.ones(1)}, file)

    def load(**options):
        file.seek(0)
        return {name: t.device.type for name, t in torch.load(file, **options).items()}

    assert load() == {"there": "cuda", "host": "cpu"}
    assert load(map_location="cpu") == {"there": "cpu", "host": "cpu"}
    assert load(map_location=CUDA) == {"there": "cuda", "host": "cuda"}
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"w": torch.arange(3.0, device="cuda")}, tmp_path / "w.safetensors")
    found = safetensors.load_file(tmp_path / "w.safetensors", device="cuda")["w"]
    assert (found.device, found.tolist()) == (CUDA, [0, 1, 2])


def test_pinned_memory(card):
    host = torch.ones(3).pin_memory()
    assert host.is_pinned()
    assert not torch.ones(3).is_pinned()
    assert host.to("cuda", non_blocking=True).device == CUDA
    assert torch.empty(2, pin_memory=True).is_pinned()
    batches = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2, pin_memory=True)
    assert all(batch.is_pinned() for batch in batches)


def _state():
    names = [(owner, name) for owner in (torch, torch.cuda, torch.Tensor, torch.version) for name in dir(owner)]
    return {(owner.__name__, name): getattr(owner, name, None) for owner, name in names}


def test_everything_is_put_back_after_an_exception():
    before, packages = _state(), len(torch.serialization._package_registry)
    kept = []

    @rung.simulate("Quadro P2200")
    def fails():
        kept.append(torch.ones(2, device="cuda"))
        with torch.autocast("cuda", dtype=torch.float16):
            raise KeyError(str(kept[0].device))

    with pytest.raises(KeyError, match="cuda:0"):
        fails()
    after = _state()
    assert {key for key in before if before[key] is not after[key] and before[key] != after[key]} == set()
    assert set(after) == set(before)
    assert len(torch.serialization._package_registry) == packages
    assert kept[0].device == CPU
    assert (kept[0] + 1).tolist() == [2, 2]
    assert not torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.softmax(torch.ones(2, dtype=torch.bfloat16), 0).dtype == torch.bfloat16
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError)):
            torch.zeros(1, device="cuda")


def test_a_function_that_was_taken_inside_works_outside():
    with rung.simulate("v100"):
        from torch import zeros

        assert zeros(1, device="cuda").device == CUDA
    assert zeros(1).device == CPU
    with rung.simulate("p2200"):
        assert zeros(1, device="cuda").device == CUDA


@rung.simulate("Tesla P40")
def _decorated(value):
    return torch.cuda.get_device_name(), torch.tensor(value, device="cuda").device


def test_as_a_decorator():
    assert _decorated(1) == ("Tesla P40", CUDA) == _decorated(2)
    assert torch.ones(1).device == CPU


def test_a_body_that_runs_later_is_not_decorated():
    with pytest.raises(UsageError, match="later cannot be decorated"):

        @rung.simulate("v100")
        def later():
            yield 1

    with pytest.raises(UsageError, match="soon cannot be decorated"):

        @rung.simulate("v100")
        async def soon():
            pass


def test_a_block_that_cannot_begin_changes_nothing(monkeypatch):
    def broken(*_):
        raise OSError("no")

    before = _state()
    monkeypatch.setattr("rung.simulation.dispatch.threads.install", broken)
    with pytest.raises(OSError, match="no"), rung.simulate("v100"):
        pass
    monkeypatch.undo()
    after = _state()
    assert {key for key in before if before[key] is not after[key] and before[key] != after[key]} == set()
    assert not torch.cuda.is_available() or torch.cuda.get_device_name() != "Tesla V100 SXM2"
    with rung.simulate("v100"):
        assert torch.ones(1).cuda().device == CUDA


def test_questions_that_make_no_sense(card):
    with pytest.raises(UsageError, match="is being simulated already"), rung.simulate("v100"):
        pass
    assert torch.ones(1).cuda().device == CUDA
    with pytest.raises(UnknownDevice, match="Did you mean"):
        rung.simulate("quadro p220")
    with pytest.raises(UnknownDevice, match="fits 3 different products"):
        rung.simulate("rtx 6000")
    with pytest.raises(UsageError, match="only GPUs are simulated"):
        rung.simulate("epyc 7763")
    with pytest.raises(UsageError, match="is not a size"):
        rung.simulate("v100", memory="lots")
    with pytest.raises(UsageError, match="dtype"):
        rung.Defect("matmul", "half")
    with pytest.raises(UsageError, match="no exception"):
        rung.Defect("matmul", "f16", text="boom")
    for op, exception in ((3, None), ("bmm", "RuntimeError"), ("bmm", int), ("bmm", RuntimeError("x"))):
        with pytest.raises(UsageError, match="cannot be made of"):
            rung.Defect(op, "f16", exception)
    for wrong in ("cpu", "cuda:0", "sim:cuda", 3, None):
        with pytest.raises(UsageError, match="names no card of the catalog"):
            rung.simulate(wrong)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1).to("cuda:1")


def test_a_card_of_one_s_own(tmp_path):
    text = 'name = "My card"\narch = "sm_86"\nmemory = 3\nbandwidth = 300\npeaks = { f32 = 9 }\n'
    file = tmp_path / "my-card.toml"
    file.write_text(text)
    with rung.simulate(str(file)):
        assert torch.cuda.get_device_name() == "My card"
        assert torch.cuda.get_device_capability() == (8, 6)
    file.write_text(text.replace("bandwidth", "bandwith"))
    with pytest.raises(UsageError, match="bandwith"):
        rung.simulate(str(file))
    with pytest.raises(RungError, match="no-card"):
        rung.simulate(str(tmp_path / "no-card.toml"))


def test_a_real_card_in_use_is_not_shadowed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UsageError, match="real cuda device is in use"), rung.simulate("v100"):
        pass
    monkeypatch.undo()
    with rung.simulate("v100"):
        assert torch.ones(1).cuda().device == CUDA


def test_an_index_lies_with_its_tensor_or_on_the_host(card):
    here, there = torch.arange(4.0), torch.arange(4.0, device="cuda")
    for index in (torch.tensor([1, 2]), torch.tensor([True, False, True, False])):
        assert there[index].is_cuda
        with pytest.raises(RuntimeError, match=r"same device as the indexed tensor \(cpu\)"):
            here[index.cuda()]
        with pytest.raises(RuntimeError, match="same device as the indexed tensor"):
            here[index.cuda()] = 0.0


@pytest.mark.slow
def test_a_block_that_nobody_leaves_ends_with_the_process_in_silence():
    code = "import rung; rung.simulate('v100').__enter__(); import torch; print(torch.ones(2, device='cuda').device)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("cuda:0\n", "")
