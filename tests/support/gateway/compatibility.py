"""What of an API breaks its clients: one OpenAPI document against a later one."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Schema = Mapping[str, Any]

_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems")
_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems")


class _Documents(NamedTuple):
    wide: Mapping[str, Schema]
    narrow: Mapping[str, Schema]
    is_input: bool
    """The new document must take all that the old one took; else: answer nothing else."""


def breaks(old: Any, new: Any) -> list[str]:
    """Return what a client of the old document cannot rely on with the new one, a line each."""
    found: list[str] = []
    for path, item in old["paths"].items():
        for method, operation in item.items():
            name = f"{method.upper()} {path}"
            now = new["paths"].get(path, {}).get(method)
            if now is None:
                found.append(f"{name}: is removed")
            else:
                found += [f"{name}: {each}" for each in _of_operation(operation, now, old, new)]
    return found


def _of_operation(was: Any, now: Any, old: Any, new: Any) -> Iterator[str]:
    if was["operationId"] != now["operationId"]:
        yield f"is called {now['operationId']}, not {was['operationId']}"
    old_schemas, new_schemas = (it["components"]["schemas"] for it in (old, new))
    inputs = _Documents(new_schemas, old_schemas, is_input=True)
    outputs = _Documents(old_schemas, new_schemas, is_input=False)
    yield from _of_parameters(was, now, inputs)
    yield from _of_body(was, now, inputs)
    for status, answer in was["responses"].items():
        if int(status) >= 400:
            continue  # a problem document; what is refused with which status may change
        if status not in now["responses"]:
            yield f"answers no {status} any longer"
            continue
        for media_type, content in answer["content"].items():
            later = now["responses"][status]["content"].get(media_type)
            if later is None:
                yield f"{status} is no {media_type} any longer"
            else:
                yield from _lacks(content["schema"], later["schema"], outputs, status, ())


def _of_parameters(was: Any, now: Any, inputs: _Documents) -> Iterator[str]:
    before = {(it["in"], it["name"]): it for it in was.get("parameters", [])}
    after = {(it["in"], it["name"]): it for it in now.get("parameters", [])}
    for place, parameter in before.items():
        name = f"{place[0]} parameter {place[1]}"
        if place not in after:
            yield f"{name} is removed"
            continue
        if after[place]["required"] and not parameter["required"]:
            yield f"{name} is required"
        yield from _lacks(after[place]["schema"], parameter["schema"], inputs, name, ())
    for place in after.keys() - before.keys():
        if after[place]["required"]:
            yield f"{place[0]} parameter {place[1]} is new and required"


def _of_body(was: Any, now: Any, inputs: _Documents) -> Iterator[str]:
    before, after = was.get("requestBody"), now.get("requestBody")
    if after is None:
        if before is not None:
            yield "takes no body any longer"
        return
    if before is None:
        if after.get("required"):
            yield "a body is new and required"
        return
    if after.get("required") and not before.get("required"):
        yield "the body is required"
    for media_type, content in before["content"].items():
        later = after["content"].get(media_type)
        if later is None:
            yield f"takes no {media_type} any longer"
        else:
            yield from _lacks(later["schema"], content["schema"], inputs, "body", ())


def _lacks(
    wide: Schema, narrow: Schema, of: _Documents, place: str, within: tuple[str, ...]
) -> Iterator[str]:
    """Yield why a value of the narrow schema may be none of the wide one."""
    pair = json.dumps([wide, narrow], sort_keys=True)
    if pair in within:
        return  # a record that holds itself
    within = (*within, pair)
    variants = list(_variants(wide, of.wide))
    if {} in variants:
        return  # it takes anything
    for each in _variants(narrow, of.narrow):
        alike = [it for it in variants if _kind(it) == _kind(each)]
        if not alike:
            yield f"{place}: {_kind(each)} is {'refused' if of.is_input else 'new'}"
            continue
        reasons = [list(_differences(it, each, of, place, within)) for it in alike]
        yield from min(reasons, key=len)


def _variants(schema: Schema, schemas: Mapping[str, Schema]) -> Iterator[Schema]:
    if "$ref" in schema:
        yield from _variants(schemas[str(schema["$ref"]).rpartition("/")[2]], schemas)
    elif "anyOf" in schema:
        for each in schema["anyOf"]:
            yield from _variants(each, schemas)
    elif isinstance(schema.get("type"), list):
        for kind in schema["type"]:
            yield {**schema, "type": kind}
    else:
        yield {key: it for key, it in schema.items() if key not in {"description", "title"}}


def _kind(schema: Schema) -> str:
    kind = schema.get("type")
    if kind is None and "enum" in schema:
        found = {type(value).__name__ for value in schema["enum"] if value is not None}
        kind = {"str": "string", "int": "integer"}.get(next(iter(found), ""), "null")
    return str(kind or "anything")


def _differences(
    wide: Schema, narrow: Schema, of: _Documents, place: str, within: tuple[str, ...]
) -> Iterator[str]:
    if of.is_input:  # what is answered may have other limits, and further words of a list
        yield from _limits(wide, narrow, place)
    needed, given = set(wide.get("required", [])), set(narrow.get("required", []))
    properties, others = wide.get("properties", {}), narrow.get("properties", {})
    for name in sorted(needed - given):
        if of.is_input:
            yield f"{place}.{name} is required"
        elif name in others:
            yield f"{place}.{name} may be missing"
    gone = (others.keys() - properties.keys()) if of.is_input else properties.keys() - others
    yield from (f"{place}.{name} is removed" for name in sorted(gone))
    for name in properties.keys() & others.keys():
        yield from _lacks(properties[name], others[name], of, f"{place}.{name}", within)
    for part in ("items", "additionalProperties"):
        if isinstance(wide.get(part), dict) and isinstance(narrow.get(part), dict):
            yield from _lacks(wide[part], narrow[part], of, f"{place}[]", within)


def _limits(wide: Schema, narrow: Schema, place: str) -> Iterator[str]:
    if "enum" in wide:
        if "enum" not in narrow:
            yield f"{place}: only {wide['enum']} is taken"
        gone = [value for value in narrow.get("enum", []) if value not in wide["enum"]]
        yield from (f"{place}: {value!r} is refused" for value in gone)
    for name in _LOWER:
        if name in wide and (name not in narrow or wide[name] > narrow[name]):
            yield f"{place}: {name} is {wide[name]}"
    for name in _UPPER:
        if name in wide and (name not in narrow or wide[name] < narrow[name]):
            yield f"{place}: {name} is {wide[name]}"
    if "pattern" in wide and wide["pattern"] != narrow.get("pattern"):
        yield f"{place}: must match {wide['pattern']}"
