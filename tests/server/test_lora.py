"""Adapters of the command line in other strengths: of the server, and of a request."""

from __future__ import annotations

import pytest

from rung.engine.load import load
from tests.engine.test_adapters import adapted, base
from tests.server.conftest import serving

BODY = {"prompt": "the cat", "n_predict": 10}


@pytest.fixture(scope="module")
def several(_cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    base(folder / "base", head_dim=16)
    for name, seed in (("one", 1), ("two", 2)):
        adapted(base(folder / "again", head_dim=16), seed=seed).save_pretrained(folder / name)
    return folder


def test_adapters_have_the_strengths_that_are_named(several, tmp_path):
    path, one, two = (str(several / name) for name in ("base", "one", "two"))

    def expected(*adapters):
        model = load(path, format="q8_0", adapters=adapters)
        return "".join(model.generate("the cat", raw=True, max_tokens=10))

    want = {
        scales: expected(*(f"{name}:{scale}" for name, scale in zip((one, two), scales, strict=True) if scale))
        for scales in ((1.0, 0.5), (0.0, 0.0), (0.0, 2.0), (3.0, 0.0), (-1.0, 1.0))
    }
    assert len(set(want.values())) > 3
    with serving(tmp_path, path, "--format", "q8_0", "--adapter", one, "--adapter", f"{two}:0.5") as server:

        def answer(**more):
            return server.call("/completion", {**BODY, **more})[1]["content"]

        loaded = [{"id": 0, "path": one, "scale": 1.0}, {"id": 1, "path": two, "scale": 0.5}]
        assert server.call("/lora-adapters")[1] == loaded
        assert answer() == want[1.0, 0.5]
        for _ in range(2):
            for first, second in want:
                scales = [{"id": 0, "scale": first}, {"id": 1, "scale": second}]
                assert answer(lora=scales) == want[first, second]
        assert answer(lora=[]) == want[0.0, 0.0]
        assert answer(lora=[{"id": 1, "scale": 2}]) == want[0.0, 2.0]
        chat = {"prompt": "the cat", "max_tokens": 10, "lora": [{"id": 0, "scale": 3}], "temperature": 0}
        assert server.call("/v1/completions", chat)[1]["choices"][0]["text"] == want[3.0, 0.0]
        assert server.call("/lora-adapters", [{"id": 1, "scale": 2}])[1] == {"success": True}
        assert [each["scale"] for each in server.call("/lora-adapters")[1]] == [0, 2]
        assert answer() == want[0.0, 2.0]
        assert answer(lora=[{"id": 0, "scale": 3}]) == want[3.0, 0.0]
        for wrong in ([{"id": 2, "scale": 1}], [{"id": -1, "scale": 1}], [{"id": 0}], {"id": 0, "scale": 1}):
            assert server.call("/lora-adapters", wrong)[0] == 400
            assert server.call("/completion", {**BODY, "lora": wrong})[0] == 400


def test_a_model_without_adapters_has_none(server):
    assert server.call("/lora-adapters")[1] == []
    assert server.call("/completion", {**BODY, "lora": [{"id": 0, "scale": 1}]})[0] == 400
    assert server.call("/lora-adapters", [{"id": 0, "scale": 1}])[0] == 400
