"""JSON as text that people keep: where each value stands, and edits that touch nothing but the value they change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]  # exported by the standard library, not by its stubs
from typing import Any

from console.errors import PatchError

_SPACE = " \t\n\r"
_DECODER = json.JSONDecoder()


@dataclass(slots=True)
class Node:
    """One value's place in the text, `text[start:end]`, and the places of what it holds."""

    start: int
    end: int
    members: dict[str, Node] = field(default_factory=dict)
    items: list[Node] = field(default_factory=list)
    key_start: int = 0


def locate(text: str) -> Node:
    """The places of every value of a JSON text. Raises json.JSONDecodeError where the text is not JSON."""
    json.loads(text)  # proves it well-formed, so that the walk below need not check
    return _walk(text, _skip(text, 0))


def _walk(text: str, at: int) -> Node:
    opening = text[at]
    if opening not in "{[":
        _, end = _DECODER.raw_decode(text, at)
        return Node(at, end)
    node = Node(at, at)
    closing = "}" if opening == "{" else "]"
    at = _skip(text, at + 1)
    while text[at] != closing:
        key_start = at
        if opening == "{":
            key, at = scanstring(text, at + 1, True)
            at = _skip(text, _skip(text, at) + 1)
        child = _walk(text, at)
        child.key_start = key_start
        if opening == "{":
            node.members[key] = child
        else:
            node.items.append(child)
        at = _skip(text, child.end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    node.end = at + 1
    return node


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def steps_of(pointer: str) -> list[str]:
    """The reference tokens of a JSON Pointer (RFC 6901). Raises PatchError."""
    if pointer and not pointer.startswith("/"):
        raise PatchError(f"{pointer!r} is not a JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def apply_patch(text: str, patch: Sequence[Mapping[str, Any]]) -> str:
    """The text after a JSON Patch of test, add, replace and remove (RFC 6902); what it does not name stays as it is.

    All or nothing. Raises PatchError where a `test` does not hold or a path is not there, json.JSONDecodeError where
    the text is not JSON.
    """
    for step in patch:
        text = _apply(text, step)
    return text


def _apply(text: str, step: Mapping[str, Any]) -> str:
    op, pointer = step.get("op"), str(step.get("path", ""))
    steps = steps_of(pointer)
    if op == "test":
        node = _find(locate(text), steps, pointer)
        if not same(json.loads(text[node.start : node.end]), step.get("value")):
            raise PatchError(
                f"the fix was made for another config: {pointer or 'the document'} is not {_short(step.get('value'))} "
                f"any more; run the checks again"
            )
        return text
    if op == "replace" or (op == "add" and not steps):
        node = _find(locate(text), steps, pointer)
        return text[: node.start] + _written(text, node, step["value"]) + text[node.end :]
    if op == "add":
        return _add(text, steps, pointer, step["value"])
    if op == "remove" and steps:
        return _remove(text, steps, pointer)
    raise PatchError(f"operation {op!r} on {pointer!r} is not one of test, add, replace, remove")


def same(left: Any, right: Any) -> bool:
    """JSON equality: numbers by value, and true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right))
    return bool(left == right)


def _find(node: Node, steps: Sequence[str], pointer: str) -> Node:
    for step in steps:
        child = node.members.get(step)
        if child is None and node.items and step.isdigit() and int(step) < len(node.items):
            child = node.items[int(step)]
        if child is None:
            raise PatchError(f"the fix was made for another config: there is no {pointer} in this one")
        node = child
    return node


def _add(text: str, steps: list[str], pointer: str, value: Any) -> str:
    parent = _find(locate(text), steps[:-1], pointer.rpartition("/")[0])
    key = steps[-1]
    is_list = text[parent.start] == "["
    if is_list:
        index = len(parent.items) if key == "-" else int(key) if key.isdigit() else -1
        if not 0 <= index <= len(parent.items):
            raise PatchError(f"{pointer}: no such place in a list of {len(parent.items)}")
        whole = json.loads(text[parent.start : parent.end])
        whole.insert(index, value)
        return text[: parent.start] + _written(text, parent, whole) + text[parent.end :]
    if text[parent.start] != "{":
        raise PatchError(f"{pointer}: its parent holds no keys")
    if key in parent.members:
        old = parent.members[key]
        return text[: old.start] + _written(text, old, value) + text[old.end :]
    children = list(parent.members.values())
    lead = _lead(text, children[-1].key_start) if children else ""
    inner = lead or _lead(text, parent.start) + "  "
    fresh = f"{json.dumps(key, ensure_ascii=False)}: {_dumped(value, inner, isinstance(value, dict))}"
    if children:
        last = max(children, key=lambda child: child.end)
        separator = f",\n{lead}" if _own_line(text, last.key_start) else ", "
        return text[: last.end] + separator + fresh + text[last.end :]
    if "\n" in text:
        outer = _lead(text, parent.start)
        fresh = f"{{\n{outer}  {fresh}\n{outer}}}"
        return text[: parent.start] + fresh + text[parent.end :]
    return text[: parent.start] + "{" + fresh + "}" + text[parent.end :]


def _remove(text: str, steps: list[str], pointer: str) -> str:
    root = locate(text)
    parent, node = _find(root, steps[:-1], pointer), _find(root, steps, pointer)
    siblings = sorted([*parent.members.values(), *parent.items], key=lambda child: child.start)
    index = next(i for i, child in enumerate(siblings) if child is node)
    if len(siblings) == 1:
        return text[: parent.start + 1] + text[parent.end - 1 :]
    if index + 1 < len(siblings):
        return text[: node.key_start] + text[siblings[index + 1].key_start :]
    return text[: siblings[index - 1].end] + text[node.end :]


def _written(text: str, node: Node, value: Any) -> str:
    """The new value in the manner of the old one: on one line if it was."""
    return _dumped(value, _lead(text, node.start), "\n" in text[node.start : node.end])


def _dumped(value: Any, lead: str, spread: bool) -> str:
    if not spread or not isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False, indent=2).replace("\n", f"\n{lead}")


def _lead(text: str, at: int) -> str:
    """The indentation of the line on which `at` stands."""
    begin = text.rfind("\n", 0, at) + 1
    return text[begin : _skip_blank(text, begin)]


def _own_line(text: str, at: int) -> bool:
    begin = text.rfind("\n", 0, at) + 1
    return begin > 0 and not text[begin:at].strip()


def _skip_blank(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    return at


def _short(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 60 else shown[:57] + "…"


@dataclass(frozen=True, slots=True)
class Change:
    """One key that differs: its pointer, the value before and after (`absent` says which side lacks it)."""

    pointer: str
    before: Any
    after: Any
    absent: str = ""

    @property
    def words(self) -> str:
        """`/key: 1 → 2`, with `absent` for a side that lacks it."""
        before = "absent" if self.absent == "before" else _short(self.before)
        after = "absent" if self.absent == "after" else _short(self.after)
        return f"{self.pointer or '/'}: {before} → {after}"


def changes(before: Any, after: Any, pointer: str = "") -> list[Change]:
    """What differs between two JSON values, key by key; a list that differs is one change."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if same(before, after) else [Change(pointer, before, after)]
    out: list[Change] = []
    for key in [*before, *(key for key in after if key not in before)]:
        child = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
        if key not in after:
            out.append(Change(child, before[key], None, "after"))
        elif key not in before:
            out.append(Change(child, None, after[key], "before"))
        else:
            out += changes(before[key], after[key], child)
    return out
