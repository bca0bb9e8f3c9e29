"""Hold what can go wrong, as one tree. Each error carries its cause, the facts behind it and ways out.

::

    RungError
    ├── UsageError              a wrong argument, option or combination of them
    │   ├── UnknownFormat       no format of that name
    │   ├── UnknownDevice       no device of that name, here or in the catalog
    │   └── ContextTooLong      a prompt or a requested context above what the model or the plan holds
    ├── ModelError              something about the model that was asked for
    │   ├── ModelNotFound       neither a file, a folder nor a name on the hub
    │   │   └── NotPulled       a starter whose file is not here yet
    │   ├── BadFile             a file that is not what it should be: truncated, foreign, contradictory
    │   ├── UnsafeFile          a pickle: reading it could run code
    │   ├── UnknownArchitecture a model type that rung does not build
    │   ├── ModelInUse          another process runs the model that is to be removed
    │   └── TemplateError       a chat template that fails, loops or reaches for what it must not
    ├── CannotTrace             a module that decides on the values of tensors, of which a trace has none
    ├── CannotEncode            values that a format cannot hold: NaN, Inf, a scale that overflows
    ├── DiskFull                no room for what is to be written
    ├── DoesNotFit              no plan within the budget; carries the smallest relaxations
    ├── SoftwareMissing         a package or build that is not here
    ├── DeviceError             a device that is there and cannot do what was asked
    │   ├── OutOfMemory         an allocation failed: plan again with less
    │   └── DeviceLost          a sticky error: nothing more runs there
    ├── NoRung                  an explicit request that no rung of the ladder accepts
    ├── HubError                the model hub refused, failed or cannot be reached
    ├── DownloadError           a model that could not be fetched, or that is not what it should be
    └── RegistrationError       our own mistake: a name registered twice, or under an unknown op
"""

from __future__ import annotations

from collections.abc import Iterable

from rung.core.text import printable


class RungError(Exception):
    """The root of all errors that rung raises on purpose.

    ``cause`` is one sentence; ``facts`` are the findings behind it; ``ways_out`` name commands that exist; where none
    are given they are ``usual_ways`` of the class. ``code`` is a stable name for programs, listed in
    docs/error-codes.md: that of the class, or a narrower one.
    """

    code = "error"
    exit_code = 1
    usual_ways: tuple[str, ...] = ()

    def __init__(self, cause: str, facts: Iterable[str] = (), ways_out: Iterable[str] = (), *, code: str = "") -> None:
        super().__init__(cause)
        if code:
            self.code = code
        self.cause = cause
        self.facts = tuple(facts)
        self.ways_out = tuple(ways_out) or self.usual_ways

    def __str__(self) -> str:
        lines = [self.cause, *(f"  {fact}" for fact in self.facts)]
        if self.ways_out:
            lines += ["What to do", *(f"  {number}  {way}" for number, way in enumerate(self.ways_out, 1))]
        return printable("\n".join(lines))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code!r}, {self.cause!r})"

    def to_json(self) -> dict[str, object]:
        """Return the document that ``--json`` prints in the place of an answer."""
        return {
            "error": self.cause,
            "code": self.code,
            "facts": list(self.facts),
            "ways_out": list(self.ways_out),
        }


class UsageError(RungError):
    """A wrong argument, option or combination of them."""

    code = "wrong-argument"
    exit_code = 2


class UnknownFormat(UsageError):
    """No format of that name."""

    code = "format-unknown"


class UnknownDevice(UsageError):
    """No device of that name, here or in the catalog."""

    code = "device-unknown"


class ContextTooLong(UsageError):
    """A prompt or a requested context above what the model or the plan holds. ``tokens`` and ``context`` are the two
    numbers, where whoever raises it knows both of a prompt; else 0."""

    code = "context-too-long"
    tokens = context = 0


class ModelError(RungError):
    """Something about the model that was asked for."""

    code = "model-error"


class ModelNotFound(ModelError):
    """Neither a file, a folder nor a name on the hub: a wrong question, like an unknown device."""

    code = "model-unknown"
    exit_code = 2
    usual_ways = ("rung run demo   # the embedded model needs no file",)


class NotPulled(ModelNotFound):
    """A starter whose file is not here yet."""

    code = "model-not-pulled"


class BadFile(ModelError):
    """A file that is not what it should be: truncated, foreign, contradictory."""

    code = "file-invalid"
    usual_ways = ("fetch the model again, or take another copy of it:  rung run ORG/REPO",)


class UnsafeFile(ModelError):
    """A pickle: reading it could run code."""

    code = "file-unsafe"


class UnknownArchitecture(ModelError):
    """A model type that rung does not build."""

    code = "architecture-unknown"
    usual_ways = ("take a model of a kind that rung builds:  rung run ORG/REPO", "rung run demo")


class TemplateError(ModelError):
    """A chat template that fails, loops or reaches for what it must not."""

    code = "chat-template-failed"


class ModelInUse(ModelError):
    """Another process runs the model that is to be removed."""

    code = "model-in-use"


class CannotTrace(RungError):
    """A module that decides on the values of tensors, of which a trace has none; the line is among the facts."""

    code = "module-not-traceable"
    usual_ways = ("decide it on a number or a shape, or trace the submodules on either side of that line",)


class CannotEncode(RungError):
    """Values that a format cannot hold: NaN, Inf, a scale that overflows."""

    code = "values-do-not-suit-format"


class DiskFull(RungError):
    """No room on the disk for what is to be written."""

    code = "disk-full"


class DoesNotFit(RungError):
    """No plan within the budget; the ways out are the smallest relaxations."""

    code = "memory-does-not-fit"


class SoftwareMissing(RungError):
    """A package or build that is not here."""

    code = "software-missing"


class DeviceError(RungError):
    """A device that is there and cannot do what was asked."""

    code = "device-cannot"


class OutOfMemory(DeviceError):
    """An allocation failed: plan again with less; nothing is quarantined."""

    code = "memory-exhausted"


class DeviceLost(DeviceError):
    """A sticky error: nothing more runs on that device in this process."""

    code = "device-lost"


class NoRung(RungError):
    """An explicit request that no rung of the ladder accepts."""

    code = "no-rung"


class HubError(RungError):
    """The model hub refused, failed or cannot be reached."""

    code = "hub-failed"


class DownloadError(RungError):
    """A model that could not be fetched, or that is not what it should be."""

    code = "download-failed"


class RegistrationError(RungError):
    """Our own mistake: a name registered twice, or under an unknown op."""

    code = "registration-invalid"
