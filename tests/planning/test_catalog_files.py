"""Sizes that are computed for models of the catalog against the sizes of published files."""

import pytest

from rung.models.catalog import known_models, outline_of
from rung.models.catalog.names import Match
from rung.planning.gguf_mixtures import LLAMA_CPP, Mixture, storage
from rung.planning.network_spec import Subject
from rung.planning.weight_plan import file_bytes

FILES = [(model, file) for model in known_models() for file in model.files]


@pytest.mark.parametrize(("model", "file"), FILES, ids=lambda one: getattr(one, "name", getattr(one, "format", None)))
def test_files_have_the_published_size(model, file):
    outline = outline_of(Match(model.name, model))
    subject = Subject.of_component(outline.components[0], outline.kind, outline.path)
    target = Mixture(file.format) if file.format in LLAMA_CPP else storage(file.format)
    assert file_bytes(subject, target) == pytest.approx(file.bytes, rel=0.01)


def test_enough_rows_have_one():
    assert len({model.name for model, _ in FILES}) >= 100
