"""What torch answers about a simulated card, by vendor."""

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
