"""Test torch's answers about a simulated card, by vendor."""

from __future__ import annotations

import pytest
import torch

import rung


def test_an_nvidia_card():
    with rung.simulate("Quadro P2200") as device:
        assert device.name == "Quadro P2200"
        assert not device.real
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.get_device_name() == torch.cuda.get_device_name("cuda:0") == "Quadro P2200"
        assert torch.cuda.get_device_capability() == (6, 1)
        assert torch.cuda.get_arch_list()[:3] == ["sm_50", "sm_60", "sm_70"]  # of torch 2.14+cu126
        properties = torch.cuda.get_device_properties(0)
        assert (properties.name, properties.major, properties.minor) == ("Quadro P2200", 6, 1)
        assert properties.multi_processor_count == 10
        assert properties.total_memory == torch.cuda.mem_get_info()[1]
        assert torch.version.cuda
        assert torch.version.hip is None
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.cuda.is_bf16_supported()
        assert not torch.cuda.is_bf16_supported(including_emulation=False)
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.cuda.get_device_properties(3)
        with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
            torch.cuda.memory_allocated("cpu")
    assert not torch.cuda.is_available() or torch.cuda.get_device_name() != "Quadro P2200"


def test_types_of_old():
    """Programs of 2018 write so: types of the card as functions, as types and as the default."""
    before = torch.cuda.FloatTensor
    with rung.simulate("v100"):
        built = torch.cuda.FloatTensor([1, 2, 3])
        assert (built.device.type, built.dtype, built.tolist()) == ("cuda", torch.float32, [1, 2, 3])
        assert torch.cuda.HalfTensor(2, 3).shape == (2, 3)
        assert isinstance(built, torch.cuda.FloatTensor)
        assert not isinstance(built, torch.cuda.HalfTensor)
        assert not isinstance(torch.ones(1), torch.cuda.FloatTensor)
        assert torch.ones(2).type(torch.cuda.LongTensor).type() == "torch.cuda.LongTensor"
        assert torch.cuda.LongTensor.dtype is torch.int64
        for kind in (torch.cuda.FloatTensor, "torch.cuda.FloatTensor"):
            torch.set_default_tensor_type(kind)
            assert torch.zeros(2).is_cuda
            torch.set_default_device(None)
        torch.set_default_tensor_type(torch.FloatTensor)
        assert not torch.zeros(2).is_cuda
    assert torch.cuda.FloatTensor is before


@pytest.mark.parametrize(
    ("software", "number"), [("torch 2.3+cu121", 8902), ("torch 2.6+cu124", 90100), ("torch 1.10+cu102", 7605)]
)
def test_cudnn_is_that_of_the_wheels(software, number):
    with rung.simulate("v100", software=software):
        assert torch.backends.cudnn.version() == number


def test_a_snapshot_of_the_memory_adds_up():
    with rung.simulate("v100"):
        torch.cuda.empty_cache()
        tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1000, 3 << 20, 30 << 20, 700)]
        del tensors[1]
        found = torch.cuda.memory_snapshot()
        assert sum(segment["total_size"] for segment in found) == torch.cuda.memory_reserved()
        assert sum(segment["allocated_size"] for segment in found) == torch.cuda.memory_allocated()
        assert sorted(b["requested_size"] for s in found for b in s["blocks"] if b["state"] == "active_allocated") == [
            700, 1000, 30 << 20,
        ]  # fmt: skip
        assert all(sum(block["size"] for block in s["blocks"]) == s["total_size"] for s in found)
        tensors.clear()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_snapshot() == []


def test_an_amd_card_speaks_of_hip():
    with rung.simulate("RX 7900 XTX") as device:
        assert device.kind == "rocm"
        assert torch.version.hip
        assert torch.version.cuda is None
        assert torch.cuda.get_device_properties(0).gcnArchName == device.arch
        assert torch.ones(1, device="cuda").is_cuda


def test_an_intel_card():
    with rung.simulate("Arc A770"):
        assert torch.xpu.is_available()
        assert torch.ones(1).xpu().is_xpu
        assert torch.ones(1, device="xpu").device == torch.device("xpu:0")
        assert torch.xpu.get_device_properties().name == "Arc A770 16GB"
        assert not torch.cuda.is_available()


def test_an_apple_gpu():
    with rung.simulate("M1 Pro"):
        assert torch.backends.mps.is_available()
        x = torch.ones(4, 4, device="mps")
        assert x.is_mps
        assert x.device == torch.device("mps:0")
        assert torch.mps.current_allocated_memory() == 512
    assert not torch.backends.mps.is_available()


def test_streams_and_events_have_nothing_to_wait_for():
    with rung.simulate("v100"):
        stream, start, end = (
            torch.cuda.Stream(),
            torch.cuda.Event(enable_timing=True),
            torch.cuda.Event(enable_timing=True),
        )
        start.record()
        with torch.cuda.stream(stream):
            assert torch.cuda.current_stream() is stream
        assert torch.cuda.current_stream() is torch.cuda.default_stream()
        stream.wait_stream(torch.cuda.current_stream())
        end.record()
        torch.cuda.synchronize()
        assert start.elapsed_time(end) >= 0
        with pytest.raises(ValueError, match="enable_timing"):
            torch.cuda.Event().elapsed_time(end)
        with torch.cuda.device(0), torch.cuda.nvtx.range("step"):
            assert torch.cuda.current_device() == 0


def test_rung_sees_the_card_first():
    with rung.simulate("Quadro P2200"):
        found = rung.devices()
        assert [device.kind for device in found] == ["cuda", "cpu"]
        assert (found[0].id, found[0].name, found[0].real) == ("cuda:0", "Quadro P2200", False)
    assert all(device.name != "Quadro P2200" for device in rung.devices())


def test_streams_and_events_of_any_device():
    """``torch.Stream`` and ``torch.Event`` mean the card where none is named, or where it is."""
    real = torch.Stream, torch.Event
    with rung.simulate("3060"):
        for stream in (torch.Stream(device="cuda"), torch.Stream(), torch.cuda.Stream()):
            assert isinstance(stream, torch.Stream)
            with stream:
                begin = torch.Event("cuda", enable_timing=True)
                begin.record()
            end = stream.record_event()
            assert begin.elapsed_time(end) >= 0
            assert isinstance(end, torch.Event)
    assert (torch.Stream, torch.Event) == real


def test_events_of_an_apple_gpu():
    before = torch.mps.Event
    with rung.simulate("m1 pro"):
        begin, end = torch.mps.Event(enable_timing=True), torch.mps.event.Event(enable_timing=True)
        begin.record()
        end.record()
        end.synchronize()
        assert begin.elapsed_time(end) >= 0
    assert torch.mps.Event is torch.mps.event.Event is before


@pytest.mark.parametrize(
    ("name", "threads", "shared", "registers"),
    [
        ("v100", 2048, 96, 64),
        ("2080 ti", 1024, 64, 64),
        ("a100", 2048, 163, 64),
        ("4090", 1536, 99, 64),
        ("k80", 2048, 48, 128),
    ],
)
def test_what_a_multiprocessor_has(name, threads, shared, registers):
    with rung.simulate(name):
        found = torch.cuda.get_device_properties(0)
        assert found.max_threads_per_multi_processor == threads
        assert found.shared_memory_per_block_optin == shared * 1024
        assert found.regs_per_multiprocessor == registers * 1024
        assert found.uuid == torch.cuda.get_device_properties("cuda").uuid


def test_what_the_allocator_is_asked_for():
    with rung.simulate("3060"):
        tensor = torch.ones(3, device="cuda")
        assert torch.cuda.get_allocator_backend() == "native"
        torch.cuda.set_per_process_memory_fraction(0.5)
        assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(0.5)
        torch.cuda.memory._record_memory_history()
        segments = torch.cuda.memory._snapshot()["segments"]
        assert sum(segment["allocated_size"] for segment in segments) == torch.cuda.memory_allocated() == 512
        del tensor
