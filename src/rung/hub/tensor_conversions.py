"""transformers' conversions of tensors that it reads and saves: operations of rung's, and its own, kept off parts."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

from transformers.core_model_loading import ConversionOps, WeightConverter

from rung.core.errors import RungError
from rung.hub.mmap_pages import give_back
from rung.nn.experts import NAMES


class Conversion(Protocol):
    """The quantizer that a conversion is of, as far as the operations need it."""

    refused: RungError | None  #: what stopped the conversion of a weight
    files: bool  #: whether values come from files, and not from the caller


class Operation(ConversionOps):
    """An operation of rung's among transformers' conversions.

    transformers would hide what it raises in a report; it is kept, and raised once the files have been read.
    """

    def __init__(self, hf_quantizer: Conversion) -> None:
        self.hf_quantizer = hf_quantizer  # by this name transformers knows that scales are not to be cast

    def __deepcopy__(self, memo: Any) -> Operation:
        return self

    def convert(self, input_dict: dict[str, Any], *patterns: Any, **context: Any) -> Any:
        """See ``ConversionOps``; nothing more is converted once something was refused."""
        if self.hf_quantizer.refused is None:
            try:
                result = self.converted(input_dict, context)
            except RungError as error:
                self.hf_quantizer.refused = error
            else:
                if self.hf_quantizer.files:
                    lists = (value if isinstance(value, list) else [value] for value in input_dict.values())
                    give_back(each for several in lists for each in several)
                return result
        context["missing_keys"].discard(context["full_layer_name"])  # or transformers would make random values
        return {}

    @abstractmethod
    def converted(self, tensors: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
        """The tensors by their names in the model, of those that were read by their patterns."""


def whole_names(conversion: Any) -> Any:
    """A conversion of transformers that, saving, splits tensors of fused experts and not their parts.

    The names of those begin like the tensor's; what comes after it is looked at, which reading leaves out.
    """
    if not (isinstance(conversion, WeightConverter) and _of_experts(conversion)):
        return conversion
    targets = [rf"{target}(?![.\w])" for target in conversion._original_target_patterns]
    return conversion.copy(conversion._original_source_patterns, targets, operations=conversion.operations)


def _of_experts(conversion: Any) -> bool:
    return all(target.endswith(NAMES) for target in conversion._original_target_patterns)
