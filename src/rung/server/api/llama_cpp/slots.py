"""llama.cpp's slots: what is computed in each, saved and restored; and its list of adapters."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response

from rung.server.api.openai_fields import LoraScale, lora_scales
from rung.server.errors import ApiError
from rung.server.http import json_response, read_json
from rung.server.protocol import ActOnSlot, Counts, Stats
from rung.server.service import Call, Endpoint, post

#: Decimal places of the number of a slot, at most.
_MOST_DIGITS = 6


class SlotRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/slots/N?action=save`` and ``restore``: the name that a slot is saved under, no path."""

    filename: Annotated[str, Meta(min_length=1, max_length=255)]


async def show_slots(call: Call) -> Response:
    """List the places for answers of the first model, those that are taken first."""
    _, engine = call.service.engine(None)
    known = await engine.wait_ready()
    counts = msgspec.convert(await engine.ask(Stats()), Counts)
    listed: list[dict[str, Any]] = [
        {"id": number, "n_ctx": known.context, "is_processing": number < counts.processing}
        for number in range(known.parallel)
    ]
    return json_response(listed)


async def act_on_slot(call: Call) -> Response:
    """Save the content of a slot of the first model, restore or erase it, as ``action`` of the query says."""
    if not call.service.saves_slots:
        raise ApiError(403, "Slots are not saved here; rung serve --slot-save-path DIR does.", code="not_supported")
    number, action = call.request.path_params["id_slot"], call.request.query_params.get("action")
    if not (number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS):
        raise ApiError(400, "The number of the slot is none.", param="id_slot", code="invalid_value")
    _, engine = call.service.engine(None)
    slot, name = int(number), ""
    if action in ("save", "restore"):
        name = (await read_json(call.request, SlotRequest)).filename
        _check_name(name)
    match action:
        case "save":
            found = await engine.ask(ActOnSlot(action="save", slot=slot, name=name, owner=call.owner))
            counted = {"filename": name, "n_saved": found["tokens"], "n_written": found["bytes"]}
        case "restore":
            found = await engine.ask(ActOnSlot(action="restore", slot=slot, name=name, owner=call.owner))
            counted = {"filename": name, "n_restored": found["tokens"], "n_read": found["bytes"]}
        case "erase":
            found = await engine.ask(ActOnSlot(action="erase", slot=slot, owner=call.owner))
            return json_response({"id_slot": slot, "n_erased": found["tokens"]})
        case _:
            raise ApiError(400, "action is save, restore or erase.", param="action", code="invalid_value")
    return json_response({"id_slot": slot, **counted, "timings": {f"{action}_ms": found["milliseconds"]}})


def _check_name(name: str) -> None:
    """Raise ``ApiError`` for a name that means to be a path."""
    if not name.isprintable() or any(each in name for each in ("/", "\\", "..")) or name.strip(" ") != name:
        raise ApiError(400, "filename is a plain name, no path.", param="filename", code="invalid_value")


ENDPOINTS = (
    Endpoint("GET", "/slots", show_slots),
    Endpoint("POST", "/slots/{id_slot}", act_on_slot),
)


async def show_adapters(call: Call) -> Response:
    """List the adapters of the first model, with their scales in answers that name none."""
    _, engine = call.service.engine(None)
    known = await engine.wait_ready()
    scales = dict(enumerate(scale for _, scale in known.adapters)) if engine.adapters is None else engine.adapters
    listed = [
        {"id": number, "path": path, "scale": scales.get(number, 0.0)}
        for number, (path, _) in enumerate(known.adapters)
    ]
    return json_response(listed)


async def scale_adapters(call: Call, body: list[LoraScale]) -> Response:
    """Set the scales of the adapters of the first model from now on; those that are not named have none."""
    _, engine = call.service.engine(None)
    known = await engine.wait_ready()
    if wrong := [each.id for each in body if each.id >= len(known.adapters)]:
        message = f"There is no adapter {wrong[0]}: there are {len(known.adapters)}."
        raise ApiError(400, message, param="id", code="invalid_value")
    engine.adapters = lora_scales(body)
    return json_response({"success": True})


LORA_ENDPOINTS = (
    Endpoint("GET", "/lora-adapters", show_adapters),
    post("/lora-adapters", list[LoraScale], scale_adapters),
)
