"""What an engine's source says that our tables do not: rules of layer ids, launch flags, fields of the log's lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from checks.engines.sglang import options
from checks.engines.sglang.batch import FIELDS
from checks.engines.sglang.flags import schema
from checks.engines.sglang.layers import FAMILIES, table_rule
from checks.engines.sglang.probe import SETTER, models_folder, probe
from checks.engines.tree import ModelTree, SourceUnknown
from checks.engines.versions import release
from checks.errors import CheckError
from checks.layers import Rule

# Ids a rule is compared on: each kind of wiring seen in the field, both ends, and what is no list of numbers.
TRIALS: tuple[tuple[int, object], ...] = tuple(
    (n, ids)
    for n in (61, 36)
    for ids in (
        None,
        [1, n // 2 - 1, n - 4],
        [2, n // 2, n - 3],
        [0, 3, n // 2],
        [-1, 2, n // 2],
        [n // 2, 1, n - 4],
        [2, n // 2, n - 1],
        [n - 12, n - 6, n],
        [2, 2, n // 2],
        ["1", "2", "3"],
    )
)

# Classes that are drafts themselves, or heads for embedding: nothing is captured from them for an EAGLE-3 draft.
NOT_TARGETS = re.compile(r"(?:NextN|MTP|Eagle3?|Assistant\w*|EmbeddingGemmaModel)$|Eagle|Assistant")

BREAKS = " and breaks"
SHOWN = 3

USED_DEFAULTS = {"decode-log-interval": "40", "speculative-algorithm": "None", "speculative-num-steps": "None"}

_PASSED_OVER = """
#swa token, swa token usage, #mamba token, mamba num, mamba usage, #gpu token, gpu token usage, #cpu token
cpu token usage, pre-allocated usage, #prealloc-req, #inflight-req, #bootstrap-req, #transfer-req, #retracted-req
#host-receive-req, #optimistic-req, #pending-token, #replay-token, waiting-image-req, #unbootstrapped-req
#transferring-req, largest-len, cap len, block accept len, fwd occupancy, fwd+idle occupancy, cuda graph
est. prefill TFLOPS/s (per GPU), est. decode TFLOPS/s (per GPU), est. read BW (GB/s per GPU)
est. write BW (GB/s per GPU)
"""
KEYS = frozenset(key for fields in FIELDS.values() for keys in fields.values() for key in keys) | {
    key for line in _PASSED_OVER.splitlines() for key in line.split(", ")
}
"""The keys of batch lines that the inspected releases print. Others are kept by the parser, but mean nothing to it."""


def drift(root: Path, version: str, tables: str = "") -> Iterator[str]:
    """What differs between the source of a release and our tables, a line each; `tables`: as they were at that release.

    Without it the tables are asked for the release itself, or for the newest they know when it is newer.
    """
    asked = tables or version
    for reader in (rules, flags, fields):
        try:
            yield from (f"{reader.__name__}: {line}" for line in reader(root, asked))
        except CheckError as error:
            yield f"{reader.__name__}: not read: {error}"


def rules(root: Path, version: str) -> Iterator[str]:
    """Architectures whose setter feeds other states than the table says, and targets that the table lacks."""
    seen = {name for names in FAMILIES.values() for name in names}
    for architecture in sorted(seen | set(targets(root))):
        read, (table, note) = probe(root, architecture), table_rule(version, architecture)
        if read.rule is None:
            if table is not None and "no class" not in read.why:
                yield f"{architecture}: the table has a rule, the source gives none: {read.why}"
            continue
        where = read.rule.source
        if table is None:
            fed = _served(read.rule, [2, 30, 57], 61)
            yield f"{architecture}: not in the table ({note}); ids 2,30,57 of 61 layers give {fed} ({where})"
            continue
        different = [
            (says.removesuffix(BREAKS) == knows.removesuffix(BREAKS), n, ids, says, knows)
            for n, ids in TRIALS
            if (says := _served(read.rule, ids, n)) != (knows := _served(table, ids, n))
        ]
        if different:
            # Other states say more than a break where there was none.
            shown = [
                f"ids {ids} of {n} layers give {says}, the table says {knows}"
                for _, n, ids, says, knows in sorted(different, key=lambda item: item[0])[:SHOWN]
            ]
            yield f"{architecture}: {'; '.join(shown)} ({len(different)} of {len(TRIALS)} trials differ, {where})"


def targets(root: Path) -> Iterator[str]:
    """The architectures that an engine serves EAGLE-3 drafts for: entry classes with the setter."""
    folder = models_folder(root)
    if folder is None:
        raise SourceUnknown(f"{root}: no folder of model files")
    tree = ModelTree(folder)
    for path in sorted(folder.glob("*.py")):
        if b"EntryClass" not in path.read_bytes():
            continue
        for name in sorted(_entries(tree.parse(path))):
            found = None if NOT_TARGETS.search(name) else tree.find(name)
            if found is not None and tree.method(found, SETTER) is not None:
                yield name


def _entries(tree: ast.Module) -> set[str]:
    return {
        item.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "EntryClass" for target in node.targets)
        for item in ast.walk(node.value)
        if isinstance(item, ast.Name)
    }


def _served(rule: Rule, ids: object, n: int) -> str:
    try:
        served = rule.served(ids, n)  # type: ignore[arg-type]
    except CheckError:
        return "unknown"
    return ",".join(map(str, served.states)) + (BREAKS if served.problem else "") or "nothing"


def flags(root: Path, version: str) -> Iterator[str]:
    """Flags that no table names, flags of the speculative group that came or went, and defaults that are relied on."""
    declared = {flag.name: flag for flag in schema(root)}
    names = set(declared) | {alias for flag in declared.values() for alias in flag.aliases}
    for name in sorted(names):
        if not options.known(name) and name not in options.ALIASES:
            yield f"--{name} is not known"
    asked = release(version)
    for name, span in options.SINCE.items():
        if asked in span and name not in names and name not in options.ALIASES:
            yield f"--{name} should be there since {span}"
    for name, default in USED_DEFAULTS.items():
        if name in declared and declared[name].default != default:
            yield f"--{name} defaults to {declared[name].default}, not to {default}"


# Where the releases build their batch lines.
_REPORTERS = (
    "managers/scheduler_components/metrics_reporter.py",
    "managers/scheduler_components/pool_stats_observer.py",
    "observability/scheduler_metrics_mixin.py",
    "managers/scheduler_metrics_mixin.py",
)
_KEY = re.compile(r"(?:^|, )\s*([#A-Za-z][^:,{}]{0,60}): $")
_FUNCTIONS = re.compile(r"(?:prefill|decode)_stats$|usage_msg|usage_message|token_usage")


def fields(root: Path, version: str) -> Iterator[str]:
    """Keys of batch lines that the parser has no field for."""
    folder = next((item for name in ("srt", "sglang/srt", "python/sglang/srt") if (item := root / name).is_dir()), root)
    keys = printed_keys(folder)
    if not keys:
        yield "no batch line is built where the releases before build theirs"
    for key in sorted(keys - KEYS):
        yield f"batch lines carry {key!r}, which nothing reads"
    for key in ("accept len", "gen throughput (token/s)", "#running-req", "#queue-req"):
        if keys and key not in keys:
            yield f"batch lines carry {key!r} no longer"


def printed_keys(folder: Path) -> set[str]:
    """The keys in front of values in the f-strings of the functions that build batch lines."""
    tree = ModelTree(folder)
    paths = [path for name in _REPORTERS if (path := folder / name).is_file()]
    keys: set[str] = set()
    for path in paths:
        for function in ast.walk(tree.parse(path)):
            if not isinstance(function, ast.FunctionDef) or not _FUNCTIONS.search(function.name):
                continue
            for text in (node for node in ast.walk(function) if isinstance(node, ast.JoinedStr)):
                keys |= {key.group(1) for part in _before_values(text) if (key := _KEY.search(part))}
    return keys


def _before_values(text: ast.JoinedStr) -> Iterator[str]:
    """The literal text in front of each value that stands alone behind its key."""
    for part, value in zip(text.values, text.values[1:]):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and isinstance(value, ast.FormattedValue):
            yield part.value
