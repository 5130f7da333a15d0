"""The launch flags of an engine as its own source declares them: read from the syntax tree, nothing imported or run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from checks.engines.tree import ModelTree, SourceUnknown


@dataclass(frozen=True)
class Flag:
    """A launch flag: `name` without dashes, `default` as Python would write it ("" unknown), its help and choices.

    `type`: int, float or str as the value is read, switch where there is none to give, "" where that is not known.
    `many`: it takes several values.
    """

    name: str
    default: str = ""
    help: str = ""
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    type: str = ""
    many: bool = False


Constants = Mapping[str, ast.expr]


def read_flags(
    folder: Path,
    files: tuple[str, ...],
    annotation: str = "A",
    whole: tuple[str, ...] = (),
    settings: tuple[str, ...] = (),
) -> list[Flag]:
    """The flags that the files below a folder declare, in order of their names; an absent file is passed over.

    Two ways are read, together: `parser.add_argument("--name", …)`, and fields of classes, which give the defaults and,
    where they are annotated as `A[type, "help"]` or `A[type, Arg(help=…, choices=…)]`, declare a flag themselves.
    Every field of a class named in `whole` is a flag. A default written as `Class.field` is looked up in the files of
    `settings`, with the text that stands behind the field as its help.
    Raises SourceUnknown when none of the files can be read.
    """
    trees = _trees(folder, files)
    if not trees:
        raise SourceUnknown(f"{folder}: none of {', '.join(files)} is there; give the engine's unpacked package")
    constants: dict[str, ast.expr] = {}
    for tree in trees:
        for statement in tree.body:
            if isinstance(statement, ast.Assign):
                names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
                constants.update(dict.fromkeys(names, statement.value))
    found: dict[str, Flag] = {}
    defaults: dict[str, str] = {}
    for tree in trees:
        for field in _fields(tree):
            assert isinstance(field.target, ast.Name)
            name = field.target.id.replace("_", "-")
            defaults[name] = _shown(field.value, constants)
            flag = _annotated(name, field, annotation, constants)
            if flag is not None:
                found[name] = replace(flag, default=defaults[name])
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                flag = _added(node, constants, defaults)
                if flag is not None:
                    found.setdefault(flag.name, flag)
    for tree in trees:
        for place, flag in _documented(tree).items():
            if place.partition(".")[0] in whole:
                found.setdefault(flag.name, flag)
    if any(_PLACE.fullmatch(flag.default) for flag in found.values()):
        known = {place: flag for tree in _trees(folder, settings) for place, flag in _documented(tree).items()}
        found = {name: _looked_up(flag, known) for name, flag in found.items()}
    return [found[name] for name in sorted(found)]


_PLACE = re.compile(r"[A-Z]\w*\.[a-z]\w*")  # `ModelConfig.enforce_eager`
_TO = 8
"""Settings that name one another: further than any does."""


def _looked_up(flag: Flag, known: Mapping[str, Flag]) -> Flag:
    for _ in range(_TO):
        setting = known.get(flag.default)
        if setting is None:
            break
        flag = replace(flag, default=setting.default, help=flag.help or setting.help)
    return flag


def _documented(tree: ast.Module) -> dict[str, Flag]:
    """The fields of a file's classes as `Class.field`: default, and the text that stands behind."""
    found = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for item, after in zip(node.body, [*node.body[1:], ast.Pass()]):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                said = _text(after.value) if isinstance(after, ast.Expr) else ""
                name = item.target.id
                value = _factory(item.value)
                found[f"{node.name}.{name}"] = Flag(name.replace("_", "-"), _shown(value, {}), " ".join(said.split()))
    return found


def _factory(value: ast.expr | None) -> ast.expr | None:
    """The default inside `field(default=…)` or `Field(default=…)`; a value that is none of these as it is."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("field", "Field"):
        return next((item.value for item in value.keywords if item.arg == "default"), None)
    return value


def _trees(folder: Path, files: tuple[str, ...]) -> list[ast.Module]:
    source, trees = ModelTree(folder), []
    for pattern in files:
        for path in sorted(folder.glob(pattern)):
            trees.append(source.parse(path))
    return trees


def _fields(tree: ast.Module) -> Iterator[ast.AnnAssign]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from (
                item for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            )


def _annotated(name: str, field: ast.AnnAssign, annotation: str, constants: Constants) -> Flag | None:
    note = field.annotation
    if not (isinstance(note, ast.Subscript) and isinstance(note.value, ast.Name) and note.value.id == annotation):
        return None
    parts = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
    if len(parts) < 2:
        return Flag(name)
    told = parts[1]
    kind, many, choices = _annotation(parts[0])
    if not isinstance(told, ast.Call):
        return Flag(name, help=_text(told), choices=choices, type=kind, many=many)
    given = {item.arg: item.value for item in told.keywords if item.arg}
    if _shown(given.get("no_cli"), constants) == "True":
        return None
    named = _text(given.get("name")) or _text(given.get("cli_name"))
    return Flag(
        named.lstrip("-") or name,
        help=_text(given.get("help")),
        choices=_strings(given.get("choices"), constants) or choices,
        aliases=tuple(alias.lstrip("-") for alias in _strings(given.get("aliases"), constants)),
        type="" if "type_parser" in given or ("action" in given and kind != _SWITCH) else kind,
        many=_many(given.get("nargs")) or (many and "type_parser" not in given),
    )


_SWITCH = "switch"
_TYPES = {"bool": _SWITCH, "int": "int", "float": "float", "str": "str"}
_SWITCHES = ("store_true", "store_false", "BooleanOptionalAction", "DeprecatedStoreTrueAction")


def _annotation(note: ast.expr) -> tuple[str, bool, tuple[str, ...]]:
    """(type, many, choices) of `int`, `Optional[float]`, `str | None`, `List[str]` or `Literal["a", "b"]`."""
    if isinstance(note, ast.BinOp):
        note = note.left
    if isinstance(note, ast.Name):
        return _TYPES.get(note.id, ""), False, ()
    if not (isinstance(note, ast.Subscript) and isinstance(note.value, ast.Name)):
        return "", False, ()
    if note.value.id == "Optional":
        return _annotation(note.slice)
    if note.value.id in ("List", "list"):
        return _annotation(note.slice)[0], True, ()
    if note.value.id == "Literal":
        items = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
        return "str", False, tuple(filter(None, map(_text, items)))
    return "", False, ()


def _many(nargs: ast.expr | None) -> bool:
    return isinstance(nargs, ast.Constant) and (nargs.value in ("+", "*") or type(nargs.value) is int)


def _added(call: ast.Call, constants: Constants, defaults: Mapping[str, str]) -> Flag | None:
    names = [_text(item) for item in call.args]
    long = [name[2:] for name in names if name.startswith("--")]
    if not long:
        return None
    given = {item.arg: item.value for item in call.keywords if item.arg}
    stored = _text(given.get("dest")).replace("_", "-") or long[0]
    default = _shown(given.get("default"), constants)
    if not default or default.count(".") == 1:  # `ServerArgs.name`
        default = next((defaults[name] for name in (stored, *long) if name in defaults), "")
    action = _shown(given.get("action"), {}).strip("'").rpartition(".")[2]
    read = given.get("type")
    kind = _TYPES.get(read.id, "") if isinstance(read, ast.Name) and read.id != "bool" else ""
    if not kind and read is None and not action and call.keywords and all(item.arg for item in call.keywords):
        kind = "str"  # argparse's own; what `**` brings is not seen
    return Flag(
        long[0],
        default,
        _text(given.get("help")),
        _strings(given.get("choices"), constants),
        tuple(long[1:]),
        _SWITCH if action in _SWITCHES else kind,
        _many(given.get("nargs")),
    )


def _text(node: ast.expr | None) -> str:
    """A string, also one put together from neighbouring pieces; "" for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""


def _strings(node: ast.expr | None, constants: Constants) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        node = constants.get(node.id)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        items = (_shown(item, constants) for item in node.elts)
        return tuple(item.strip("'\"") for item in items if item)
    return ()


def _shown(node: ast.expr | None, constants: Constants) -> str:
    """A value as Python writes it; a constant of the module by its value; "" where there is none or it is long."""
    if isinstance(node, ast.Name) and node.id in constants and not isinstance(constants[node.id], ast.Name):
        node = constants[node.id]
    if node is None:
        return ""
    try:
        text = ast.unparse(node)
    except (ValueError, RecursionError):
        return ""
    return text if len(text) <= 200 else ""
