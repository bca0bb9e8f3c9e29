"""The knowledge base that tells a compatibility error from a bug."""

import pytest
from tests.support.rows import each_row

from rung.core.types import StepClass
from rung.diagnosis import classify, match, signatures


@each_row("signature", signatures(), lambda s: s.id)
def test_a_signature_matches_its_own_example_and_no_other(signature):
    line = signature.example.lower()
    matching = [
        other.id
        for other in signatures()
        if (other is signature or not other.general)
        and (other.step or not other.anchors or any(word in line for word in other.anchors))  # where it is tried at all
        and other.pattern.search(signature.example)
    ]
    assert matching == [signature.id]


def test_ids_are_unique_and_rows_are_complete():
    ids = [signature.id for signature in signatures()]
    assert len(set(ids)) == len(ids)
    assert all(s.means and s.source and s.example for s in signatures())


def test_facts_are_captured():
    found = match("RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'")
    assert found is not None
    assert dict(found.facts) == {"kernel": "addmm_impl_cpu_", "dtype": "Half"}


def test_the_first_words_in_the_text_decide():
    late = "no kernel image is available for execution on the device\n...\nCUDA out of memory."
    found = match(late)
    assert found is not None
    assert found.signature.id == "cuda-no-kernel-image"


@pytest.mark.parametrize(
    "bug", [IndexError("index 3 is out of range"), ValueError("shapes (2,3) and (4,5)"), KeyError("q")]
)
def test_a_bug_is_no_compatibility_error(bug):
    assert classify(bug) is None


def test_a_chain_is_read_to_its_root():
    try:
        try:
            raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
        except RuntimeError as root:
            raise ValueError("the layer failed") from root
    except ValueError as error:
        found = classify(error)
    assert found is not None
    assert found.signature.step is StepClass.UNSUPPORTED


def test_of_two_known_errors_in_a_chain_the_root_counts():
    try:
        try:
            raise MemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        except MemoryError as root:
            raise RuntimeError("CUDA error: no kernel image is available for execution on the device") from root
    except RuntimeError as error:
        found = classify(error)
    assert found is not None
    assert found.signature.step is StepClass.OUT_OF_MEMORY


def test_a_memory_error_plans_again():
    found = classify(MemoryError())
    assert found is not None
    assert found.signature.step is StepClass.OUT_OF_MEMORY


def test_a_message_of_many_megabytes_is_answered_at_once():
    assert match("x" * 50_000_000) is None


def test_what_a_program_hid_on_purpose_is_not_looked_at():
    hidden = ValueError("no such option")
    hidden.__context__ = RuntimeError("CUDA error: no kernel image is available for execution on the device")
    assert classify(hidden) is not None
    hidden.__suppress_context__ = True  # raise ... from None
    assert classify(hidden) is None
