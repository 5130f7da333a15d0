"""JSON Patch (RFC 6902) on a config: building the fixes that findings carry, and applying them.

A built patch tests what it changes: a `test` of the old value before each `replace` or `remove`; for an absent key a
`test` of the nearest existing parent's whole value (`""` is the document), then `add`s that create missing parents.
So a patch made from one version of the file never changes another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from checks.errors import PatchFailed

Op = dict[str, Any]


def set_key(config: Mapping[str, Any], pointer: str, value: object) -> tuple[Op, ...]:
    """The ops that make `pointer` hold `value` in `config`; none when it already does.

    `pointer` is an RFC 6901 pointer to a member of nested objects, as `/eagle_config/use_aux_hidden_state`. A parent
    that exists and is no object (null, say) is replaced by an object, tested like any other change.
    """
    names = split_pointer(pointer)
    if not names:
        raise PatchFailed("a patch changes keys of the config, never the whole document")
    held: Any = config
    for depth, name in enumerate(names):
        here = join_pointer(names[:depth])
        if not isinstance(held, Mapping):
            return (_test(here, held), {"op": "replace", "path": here, "value": {}}, *_adds(names, depth, value))
        if name not in held:
            return (_test(here, held), *_adds(names, depth, value))
        held = held[name]
    # Stricter than a `test` op: 2.0 is the same number as 2, and still another text in the file.
    if json.dumps(held, sort_keys=True) == json.dumps(value, sort_keys=True):
        return ()
    return (_test(pointer, held), {"op": "replace", "path": pointer, "value": deepcopy(value)})


def remove_key(config: Mapping[str, Any], pointer: str) -> tuple[Op, ...]:
    """The ops that take the member at `pointer` out of `config`; none when it is absent."""
    held: Any = config
    for name in split_pointer(pointer):
        if not isinstance(held, Mapping) or name not in held:
            return ()
        held = held[name]
    return (_test(pointer, held), {"op": "remove", "path": pointer})


def set_keys(config: Mapping[str, Any], changes: Mapping[str, object]) -> tuple[Op, ...]:
    """The ops of several `set_key`s in the given order, each one built on what the ones before leave."""
    ops: list[Op] = []
    current: Any = config
    for pointer, value in changes.items():
        more = set_key(current, pointer, value)
        current = apply_patch(current, more)
        ops.extend(more)
    return tuple(ops)


def apply_patch(config: Mapping[str, Any], ops: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The config after `test`, `add`, `replace` and `remove` ops; the given config stays as it is.

    Raises PatchFailed where a test does not hold, a path is not there, or an op is none of the four.
    """
    document: Any = deepcopy(dict(config))
    for op in ops:
        if not isinstance(op, Mapping) or not isinstance(op.get("path"), str):
            raise PatchFailed(f"not a patch operation: {op!r}")
        document = _apply(document, str(op.get("op")), op["path"], op)
    if not isinstance(document, dict):
        raise PatchFailed("the patch leaves something that is not a JSON object")
    return document


def split_pointer(pointer: str) -> list[str]:
    """The reference tokens of an RFC 6901 pointer. Raises PatchFailed when it does not start with `/`."""
    if pointer == "":
        return []
    if not pointer.startswith("/"):
        raise PatchFailed(f"{pointer!r} is not a JSON pointer: it has to start with '/'")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def join_pointer(names: Sequence[str]) -> str:
    """The RFC 6901 pointer of reference tokens."""
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)


def same(left: object, right: object) -> bool:
    """Equality of JSON values: numbers by value, but true is not 1, and containers member by member.

    NaN, which Python's reader takes, is itself.
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right))
    return left == right or (left != left and right != right)


def _test(pointer: str, value: object) -> Op:
    return {"op": "test", "path": pointer, "value": deepcopy(value)}


def _adds(names: Sequence[str], depth: int, value: object) -> tuple[Op, ...]:
    """Adds from the first missing member down: empty objects for the parents, then the value."""
    parents = [
        {"op": "add", "path": join_pointer(names[: stop + 1]), "value": {}} for stop in range(depth, len(names) - 1)
    ]
    return (*parents, {"op": "add", "path": join_pointer(names), "value": deepcopy(value)})


def _apply(document: Any, op: str, pointer: str, raw: Mapping[str, Any]) -> Any:
    if op not in ("test", "add", "replace", "remove"):
        raise PatchFailed(f"operation {op!r} is not one of test, add, replace, remove")
    if op != "remove" and "value" not in raw:
        raise PatchFailed(f"{op} {pointer}: the operation has no value")
    names = split_pointer(pointer)
    if op == "test":
        if not same(_held(document, names, pointer), raw["value"]):
            raise PatchFailed(f"{pointer or 'the document'} is not what the fix was made for; run the checks again")
        return document
    if not names:
        if op == "remove":
            raise PatchFailed("the whole document cannot be removed")
        return deepcopy(raw["value"])
    parent, last = _held(document, names[:-1], pointer), names[-1]
    if isinstance(parent, list):
        _change_list(parent, op, last, pointer, raw)
    elif isinstance(parent, dict):
        if op != "add" and last not in parent:
            raise PatchFailed(f"{op} {pointer}: no such key")
        if op == "remove":
            del parent[last]
        else:
            parent[last] = deepcopy(raw["value"])
    else:
        raise PatchFailed(f"{op} {pointer}: its parent is neither an object nor a list")
    return document


def _change_list(items: list[Any], op: str, last: str, pointer: str, raw: Mapping[str, Any]) -> None:
    if op == "add":
        items.insert(len(items) if last == "-" else _index(last, len(items) + 1, pointer), deepcopy(raw["value"]))
        return
    at = _index(last, len(items), pointer)
    if op == "remove":
        del items[at]
    else:
        items[at] = deepcopy(raw["value"])


def _held(document: Any, names: Sequence[str], pointer: str) -> Any:
    held = document
    for name in names:
        if isinstance(held, dict) and name in held:
            held = held[name]
        elif isinstance(held, list):
            held = held[_index(name, len(held), pointer)]
        else:
            raise PatchFailed(f"{pointer}: {name!r} is not there")
    return held


def _index(text: str, length: int, pointer: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if str(number) != text or number >= length:
        raise PatchFailed(f"{pointer}: {text!r} is not an index of a list of {length}")
    return number
