"""The page of a quantized model: written where there is none, true, and its program loads the model."""

import copy
import re
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub.errors import EntryNotFoundError
from transformers import AutoModelForCausalLM

import rung
from tests.tiny import tiny_checkpoint

IDS = torch.tensor([[1, 17, 300, 4]])


@pytest.fixture
def model(tmp_path):
    tiny_checkpoint(tmp_path / "plain", "llama")
    config = rung.QuantizationConfig("nf4", keep={"model.layers.0.mlp": "q8_0"})
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=config).eval()
    loaded.config._name_or_path = "someone/tiny"
    return loaded


def test_a_saved_model_has_a_page_whose_program_loads_it(tmp_path, monkeypatch, model):
    model.save_pretrained(tmp_path / "small")
    page = (tmp_path / "small" / "README.md").read_text()
    card = huggingface_hub.ModelCard(page)
    assert (card.data.base_model, card.data.tags, card.data.library_name) == ("someone/tiny", ["rung"], "transformers")
    assert "| 11 linear layers | nf4:64 | 4.50 |\n| 3 linear layers | q8_0 | 8.50 |" in page
    assert "# small" in page
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(re.search(r"```python\n(.*?)```", page, re.S)[1], found)
    with torch.no_grad():
        assert torch.equal(found["model"].eval()(IDS).logits, model(IDS).logits)


def test_a_page_that_is_there_stays_and_plain_models_get_none(tmp_path, model):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "README.md").write_text("mine")
    copy.deepcopy(model).save_pretrained(tmp_path / "own")
    assert (tmp_path / "own" / "README.md").read_text() == "mine"
    model.dequantize()
    model.save_pretrained(tmp_path / "decoded")
    assert not (tmp_path / "decoded" / "README.md").exists()


@pytest.mark.parametrize("there", [False, True])
def test_an_upload_brings_the_page_where_the_repository_has_none(monkeypatch, model, there):
    sent = {}

    def create_commit(operations, **options):
        sent.update({each.path_in_repo: Path(each.path_or_fileobj).read_bytes() for each in operations})

    def load(*args, **options):
        if not there:
            raise EntryNotFoundError("404")
        return huggingface_hub.ModelCard("---\ntags: []\n---\nmine")

    api = SimpleNamespace(create_repo=lambda repo, **_: SimpleNamespace(repo_id=repo), create_commit=create_commit)
    monkeypatch.setattr(transformers.utils.hub, "hf_api", lambda: api)
    monkeypatch.setattr(huggingface_hub.ModelCard, "load", load)
    model.push_to_hub("someone/small")
    page = sent["README.md"].decode()
    assert "model.safetensors" in sent
    assert ('from_pretrained("someone/small")' in page) is not there
    assert ("mine" in page) is there
    assert "- rung" in page
