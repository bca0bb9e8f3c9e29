"""KL, perplexities and first choices of a changed model, beside transformers' logits in float64."""

import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div

from rung.models import open_card
from rung.quantization.divergence import Reference
from tests.tiny import tiny_checkpoint


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_a_changed_model_is_measured_as_its_logits_say(model_type, tmp_path):
    model = tiny_checkpoint(tmp_path / "before", model_type)
    before = open_card(tmp_path / "before")
    windows = torch.randint(before.decoder.vocabulary, (3, 70), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        p = model(input_ids=windows).logits[:, :-1].double().flatten(0, 1).log_softmax(dim=1)
        noise = torch.Generator().manual_seed(2)
        for parameter in model.parameters():
            parameter += 0.3 * parameter.std() * torch.randn(parameter.shape, generator=noise)
        q = model(input_ids=windows).logits[:, :-1].double().flatten(0, 1).log_softmax(dim=1)
    model.save_pretrained(tmp_path / "after")
    found = Reference(before, windows).compare(open_card(tmp_path / "after"), kinds=("a", "b", "a"))
    targets = windows[:, 1:].flatten()
    assert found.tokens == len(targets)
    assert found.divergence == pytest.approx(float(kl_div(q, p, log_target=True, reduction="batchmean")), rel=1e-3)
    assert found.perplexity_before == pytest.approx(float(cross_entropy(p, targets).exp()), rel=1e-3)
    assert found.perplexity == pytest.approx(float(cross_entropy(q, targets).exp()), rel=1e-3)
    assert found.flips == pytest.approx(float((p.argmax(dim=1) != q.argmax(dim=1)).double().mean()), abs=0.01)
    of_token = (p.exp() * (p - q)).sum(dim=1).reshape(3, -1).mean(dim=1)
    assert found.kinds["a"] == pytest.approx(float(of_token[[0, 2]].mean()), rel=1e-3)
    assert found.kinds["b"] == pytest.approx(float(of_token[1]), rel=1e-3)
    assert not Reference(before, windows).compare(before, kinds=("a", "a", "a")).kinds
