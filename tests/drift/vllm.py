"""What vLLM's source says that our tables do not: rules of layer ids, launch flags, the lines of its metrics."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from checks.engines.events import Decode
from checks.engines.tree import ModelTree, SourceUnknown
from checks.engines.vllm import log
from checks.engines.vllm.flags import schema
from checks.engines.vllm.launch import ALIASES
from checks.engines.vllm.layers import DEEPSEEK, ROWS, table_rule
from checks.engines.vllm.probe import Prober, package_folder
from checks.errors import CheckError
from checks.layers import Rule

TRIALS: tuple[tuple[int, object], ...] = tuple(
    (n, ids)
    for n in (61, 36)
    for ids in (
        None,
        [],
        [2, n // 2, n - 3],
        [n // 2, 1, n - 4],
        [0, 3, n // 2],
        [-1, 2, n // 2],
        [2, n // 2, n],
        [2, 2, n // 2],
        ["1", "2", "3"],
    )
)
SHOWN = 3
# The registry also names heads for embedding and ranking, and drafts.
TARGETS = re.compile(r"^(?!Eagle)\w*(?:ForCausalLM|ForConditionalGeneration)$")

NAMED = frozenset(DEEPSEEK) | {name for row in ROWS for name in row.architectures}
"""Architectures that the tables name: a source that says nothing of one of them is worth a line."""

USED_FLAGS = frozenset(
    {"model", "port", "host", "dtype", "max-model-len", "max-num-seqs", "gpu-memory-utilization", "enforce-eager"}
) | frozenset(ALIASES.values())

_FORMAT = re.compile(r"%(?:\.\d)?[dfs]")


def drift(root: Path, version: str, tables: str = "") -> Iterator[str]:
    """What differs between a release's source and our tables, a line each; `tables`: as they were at that release."""
    asked = tables or version
    for reader in (rules, flags, lines):
        try:
            yield from (f"{reader.__name__}: {line}" for line in reader(root, asked))
        except CheckError as error:
            yield f"{reader.__name__}: not read: {error}"


def rules(root: Path, version: str) -> Iterator[str]:
    """Targets whose source feeds other states than the table says, or reads ids at other places."""
    prober = Prober(_package(root))
    for architecture in filter(TARGETS.search, prober.architectures()):
        read, (table, note) = prober.probe(architecture), table_rule(version, architecture)
        if read.rule is None:
            if architecture in NAMED and prober.tree.find(architecture) is not None and prober.serves(architecture):
                yield f"{architecture}: named in the tables, and its source says nothing: {read.why}"
            continue
        if table is None:
            yield f"{architecture}: {note}"
            continue
        if read.rule.reads != table.row.reads:
            yield f"{architecture}: ids are read at {read.rule.reads}, the table says {table.row.reads}"
        different = [
            f"ids {ids} of {n} layers give {says}, the table says {knows}"
            for n, ids in TRIALS
            if (says := _served(read.rule, ids, n)) != (knows := _served(table, ids, n))
        ]
        if different:
            yield f"{architecture}: {'; '.join(different[:SHOWN])} ({len(different)} of {len(TRIALS)} trials differ)"


def _served(rule: Rule, ids: object, n: int) -> str:
    try:
        served = rule.served(ids, n)  # type: ignore[arg-type]
    except CheckError:
        return "unknown"
    return ",".join(map(str, served.states)) + (" and breaks" if served.problem else "") or "nothing"


def flags(root: Path, version: str) -> Iterator[str]:
    """Flags that the console or its tests give, and the release does not declare."""
    declared = {name for flag in schema(root) for name in (flag.name, *flag.aliases)}
    for name in sorted(USED_FLAGS - declared):
        yield f"--{name} is not declared"


# The file that makes a line, what the line begins with, and the values that the parser has to find in it.
_LINES = (
    (
        "v1/spec_decode/metrics.py",
        "SpecDecoding metrics: ",
        ("accept_len", "accepted", "drafted", "positions", "accept_rate_printed"),
    ),
    ("v1/metrics/loggers.py", "Avg prompt throughput: ", ("throughput", "running", "queue", "token_usage")),
)


def lines(root: Path, version: str) -> Iterator[str]:
    """Lines of metrics, as the source writes them, in which the parser does not find a value that it should."""
    package = _package(root)
    for name, begin, values in _LINES:
        line = _line(package, name, begin)
        if line is None:
            yield f"{name} writes no line that begins with {begin!r}"
            continue
        (event,) = log.parse(line)
        for value in values:
            if not isinstance(event, Decode) or getattr(event, value) in (None, ()):
                yield f"{name}: no {value} is found in {line!r}"


def _line(package: Path, name: str, begin: str) -> str | None:
    """A line as a file writes it, with numbers for its formats; parts of a list, and appended to it, are joined."""
    path = package / name
    if not path.is_file():
        return None
    module = ModelTree(package).parse(path)
    texts = {id(node): node.value for node in ast.walk(module) if isinstance(node, ast.Constant)}
    whole = next((text for text in texts.values() if isinstance(text, str) and text.startswith(begin)), None)
    if whole is None:
        return None
    for node in ast.walk(module):
        if isinstance(node, ast.List) and any(texts.get(id(item)) == whole for item in node.elts):
            parts = [str(texts[id(item)]) for item in node.elts if id(item) in texts]
            return _filled(", ".join([*parts, *_appended(module)]))
    return _filled(whole)


def _appended(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("append", "extend")
        ):
            for item in (inner for given in node.args for inner in getattr(given, "elts", [given])):
                if isinstance(item, ast.Constant) and isinstance(item.value, str) and _FORMAT.search(item.value):
                    yield item.value


def _filled(text: str) -> str:
    text = text.replace("rate: %s", "rate: 0.900, 0.500").replace("%s KV", "GPU KV").replace("%%", "%")
    return _FORMAT.sub(lambda found: "0.9" if "f" in found.group() else "3", text)


def _package(root: Path) -> Path:
    package = package_folder(root)
    if package is None:
        raise SourceUnknown(f"{root}: no model files of vLLM")
    return package
