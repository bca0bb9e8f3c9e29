"""Repeats an operation that the device refuses one rung lower, and remembers it by operation, dtype and device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rung.core.types import StepClass
from rung.diagnosis import classify, match_alone
from rung.exec.fallbacks import Way, spelled, ways
from rung.exec.report import Notes
from rung.exec.split import full, in_pieces
from rung.run.torch_private import BelowAutograd

#: Signatures whose refusal may be one of the algorithm: libraries that have several for an operation.
_LIBRARIES = ("cublas-", "cudnn-", "hipblas-", "miopen-")
_Key = tuple[str, torch.dtype, str]


class _Local(threading.local):
    repeating = False


class Steps:
    """The operations that were refused in this process, each with the way that was found."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.found_ways: dict[_Key, tuple[str, Way, str]] = {}
        self._local = _Local()
        #: Names of the operations that have been refused in some dtype: all others are not looked up.
        self.names: set[str] = set()

    def remembered(self, op: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Computes an operation whose name is known: as was found before where it was refused, else by ``run``."""
        key = _key(op, args, kwargs)
        found = None if self._local.repeating or key is None else self.found_ways.get(key)
        if found is not None and key is not None:
            label, way, reason = found
            try:
                with self._below():
                    result = self._fitting(op, way, args, kwargs)
            except Exception as error:
                if match_alone(error) is None:
                    raise
            else:  # a way that one size takes another may refuse: then it is looked for again
                self._note(key, label, reason)
                return result
        try:
            return run(*args, **kwargs)
        except Exception as error:
            return self.repeat(op, args, kwargs, error)

    def repeat(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> Any:
        """The result one rung lower; raises ``error`` where it is no question of compatibility or nothing is lower."""
        key = _key(op, args, kwargs)
        found = None if self._local.repeating or key is None else classify(error)
        if found is None or key is None:
            raise error
        with self._below():
            if found.signature.step is StepClass.OUT_OF_MEMORY:
                result = in_pieces(op, lambda inputs, named: op(*inputs, **named), args, kwargs)
                if result is None:
                    raise error
                self._note(key, "in pieces", found.reason)
                return result
            if found.signature.step is not StepClass.UNSUPPORTED:
                raise error
            for label, way in ways(op, key[1], algorithms=found.signature.id.startswith(_LIBRARIES)):
                try:
                    result = self._fitting(op, way, args, kwargs)
                except Exception as again:
                    if match_alone(again) is None:
                        raise error from again
                    if full(again):
                        self._notes.word(f"{_spoken(key)} on {key[2]}: {label} does not fit into the memory")
                    continue
                self.found_ways[key] = (label, way, found.reason)
                self.names.add(key[0])
                self._note(key, label, found.reason)
                return result
        raise error

    def repeat_above(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> Any:
        """The same of an operation that torch makes of others: above autograd, which records those."""
        key = _key(op, args, kwargs)
        found = None if self._local.repeating or key is None else classify(error)
        if found is None or key is None or found.signature.step is not StepClass.UNSUPPORTED:
            raise error
        for label, way in ways(op, key[1], algorithms=False):
            try:
                result = way(args, kwargs)
            except Exception as again:
                if match_alone(again) is None:
                    raise error from again
                continue
            self._note(key, label, found.reason)
            return result
        raise error

    def _fitting(self, op: Any, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """By that way, in pieces where its copies do not fit."""
        try:
            return way(args, kwargs)
        except Exception as error:
            if not full(error):
                raise
            refused = error.with_traceback(None)  # which held the copies that were made until then
        result = in_pieces(op, way, args, kwargs)
        if result is None:
            raise refused
        return result

    @contextlib.contextmanager
    def _below(self) -> Iterator[None]:
        """Below autograd, which sees the operation alone; what is refused meanwhile is not repeated itself."""
        self._local.repeating = True
        try:
            with BelowAutograd():
                yield
        finally:
            self._local.repeating = False

    def _note(self, key: _Key, label: str, reason: str) -> None:
        if key[2] != "meta":  # shapes alone, as torch.compile asks for them: nothing was computed
            self._notes.step(_spoken(key), key[2], spelled(key[1]), label, reason)


def _spoken(key: _Key) -> str:
    return key[0].removeprefix("aten::")


def _key(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Key | None:
    """Name, dtype and device: those of the first tensor that is no index; None without tensors."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    for value in args:
        if value.__class__ in (list, tuple):
            tensors += [item for item in value if isinstance(item, Tensor)]
    subject = next((t for t in tensors if t.is_floating_point() or t.is_complex()), tensors[0] if tensors else None)
    return None if subject is None else (op._name, subject.dtype, str(subject.device))
