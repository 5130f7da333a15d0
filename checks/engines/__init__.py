"""The engines a draft may be served by: the registry, and which engine and rule the evidence points to."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.engines import sglang, vllm
from checks.engines.locate import Entry, Located, entry_of, locate, version_beside
from checks.engines.versions import release
from checks.errors import BadConfig, CheckError, NotRunnable
from checks.layers import Rule, Served

if TYPE_CHECKING:
    from checks.evidence import Evidence
    from checks.request import EngineRequest, Request

REGISTRY: Mapping[str, Any] = {module.NAME: module for module in (sglang, vllm)}
"""Engine name -> its package: a new engine is one folder and one name here."""

GIVEN, PROBED, INSTALLED, ASSUMED = "given", "probed", "installed", "assumed"


@dataclass(frozen=True)
class Engine:
    """An engine to judge for, and its reading of the layer ids.

    `source`: `probed` = the rule was read in the source at hand; `installed` = the version was found installed and the
    rule is the table's; `given` = the user named the version; `assumed` = nothing was found, the newest known.
    `rule` is None when it is not known, and `note` then says why. `where`: file and line, or the row of the table.
    `reads`: where it looks for ids in the draft's config, as JSON pointers in order of precedence (empty: nowhere).
    """

    name: str
    version: str
    source: str
    rule: Rule | None = None
    where: str = ""
    note: str = ""
    reads: tuple[str, ...] = ()
    pointer: str = ""
    """The one of `reads` that counts for the draft at hand."""
    refuses: str = ""
    """Why it cannot serve EAGLE-3 for this target at all, where its source or the table of its release says so."""
    by_source: bool = False
    """Whether it is the source that says so."""
    differs: str = ""
    """How the source at hand and the table disagree, in words: a patched build, or one newer than the table."""

    @property
    def label(self) -> str:
        """`sglang==0.5.12`, or the bare name when the version is not known."""
        return f"{self.name}=={self.version}" if self.version else self.name

    def as_json(self) -> dict[str, str]:
        """The engine in the report."""
        return {"name": self.name, "version": self.version, "source": self.source}


def engines_for(evidence: Evidence) -> tuple[Engine, ...]:
    """The engines given; else the one whose source is given, runs or is installed; else none.

    Raises NotRunnable for a name that no folder of engines/ knows, or a source that is no engine's.
    """
    request = evidence.request
    asked = [(engine_module(item), item.version) for item in request.engines]
    if not asked:
        guess = _from_source(request) or _from_argv(request.server.argv)
        if guess is None:
            return ()
        asked = [(guess, "")]
    return tuple(_engine(evidence, module, version) for module, version in asked)


def _engine(evidence: Evidence, module: Any, version: str) -> Engine:
    request, architecture = evidence.request, _architecture(evidence)
    if version and not request.engine_source:
        # A version named without its source is a question about that version, not about what runs here.
        return _complete(evidence, module, _from_table(module, version, architecture, GIVEN, ""))
    found, why = source_of(request, module, version)
    if found is None:
        return _complete(evidence, module, _from_table(module, "", architecture, ASSUMED, why))
    return _complete(evidence, module, _probed(evidence, module, found, version))


def _probed(evidence: Evidence, module: Any, found: Located, given: str) -> Engine:
    """The engine whose source was found: its rule as the source states it, compared with the table's."""
    version, architecture = given or found.version, _architecture(evidence)
    source = GIVEN if given else INSTALLED
    if not hasattr(module, "probe"):
        return _from_table(module, version, architecture, source, "its source is not read yet")
    probes = (module.probe.probe(folder, architecture) for folder in found.folders)
    probe = next((item for item in probes if item.found), None)
    if probe is None:
        return _from_table(module, version, architecture, source, f"no model files below {found.folders[-1]}")
    if probe.rule is None:
        # A source that is there and cannot be read may be a patched one: the table would be a guess.
        why, refuses = f"its rule could not be read: {probe.why}", probe.why if probe.refuses else ""
        return Engine(module.NAME, version, source, None, "", why, refuses=refuses, by_source=probe.refuses)
    differs = _differs(evidence, probe.rule, module, version) if version else ""
    note = "; ".join(item for item in (differs, getattr(probe.rule, "note", "")) if item)
    return Engine(module.NAME, version, PROBED, probe.rule, probe.rule.source, note, differs=differs)


def _from_table(module: Any, version: str, architecture: str, source: str, why: str) -> Engine:
    rule, note = module.rule_for(version, architecture)
    notes = [why, note]
    if source == ASSUMED:
        notes.insert(1, "the newest version known is assumed; name the version (--engine NAME==VERSION)")
    joined = "; ".join(item for item in notes if item)
    where, refuses = rule.source if rule else "", module.refuses(version, architecture)
    return Engine(module.NAME, version, source, rule, where, joined, refuses=refuses)


def _complete(evidence: Evidence, module: Any, engine: Engine) -> Engine:
    """Add where this engine reads ids, and which of those places counts for the draft at hand."""
    reads: tuple[str, ...] | None = getattr(engine.rule, "reads", None)  # where the source was read, what it says
    if reads is None:
        reads = module.pointers(engine.version, _architecture(evidence))
    present = [pointer for pointer in reads if _at(evidence, pointer) is not None]
    pointer = (present or list(reads[:1]) or [""])[0]
    return replace(engine, reads=reads, pointer=pointer)


def _differs(evidence: Evidence, rule: Rule, module: Any, version: str) -> str:
    """A note when source and table disagree on the draft's ids or on usual ones: a patched build, or a newer one."""
    table, _ = module.rule_for(version, _architecture(evidence))
    if table is None:
        return ""
    own = next((ids for place in module.pointers(version, "") if isinstance(ids := _at(evidence, place), list)), None)
    n = evidence.target.n if evidence.target is not None else 61
    for ids in (own, [1, n // 2 - 1, n - 4], [2, n // 2, n - 3], [n - 12, n - 6, n]):
        read, known = _served(rule, ids, n), _served(table, ids, n)
        if read is not None and known is not None and read.states != known.states:
            return (
                f"patched, or newer than the table: for ids {_words(ids)} and {n} layers the source feeds "
                f"{_words(read.states)} ({rule.source}), the table says {_words(known.states)}"
            )
    return ""


def _served(rule: Rule, ids: Sequence[object] | None, n: int) -> Served | None:
    try:
        return rule.served(ids, n)
    except CheckError:
        return None


def _words(ids: Sequence[object] | None) -> str:
    return "absent" if ids is None else ",".join(map(str, ids)) or "none"


# -- finding it --------------------------------------------------------------------------------------------------


def source_of(request: Request, module: Any, version: str = "") -> tuple[Located | None, str]:
    """An engine's source: the one given, else the running server's, else the installed one; or why there is none.

    `version` is what is known of a source that is given; "" = what the source says.
    """
    if request.engine_source:
        root = Path(request.engine_source).expanduser()
        return Located((root,), version or _version_of(root, module), ""), ""
    return _locate(request, module)


def _locate(request: Request, module: Any) -> tuple[Located | None, str]:
    """The running server's own source, else what the deployment's python has installed, else why neither."""
    reasons = []
    server = request.server
    entry = entry_of(server.argv, server.cwd)
    if entry is not None:
        found, why = locate(entry, server.cwd, server.pythonpath)
        if found is not None:
            return _with_version(found, module, entry), ""
        reasons.append(f"the running server's source was not found ({why})")
    elif server.argv:
        reasons.append("the running server's command line does not say which Python module it is")
    installed = Entry(request.python or sys.executable, module.PACKAGE, script=True)
    found, why = locate(installed)
    if found is not None:
        return _with_version(found, module, installed), "; ".join(reasons)
    return None, "; ".join([*reasons, why])


def _with_version(found: Located, module: Any, entry: Entry) -> Located:
    """The version of the engine, not of another distribution that ships an engine of the same surface."""
    if entry.package != module.PACKAGE:
        return Located(found.folders, "", found.python)
    return Located(found.folders, found.version or version_beside(found.folders[-1]), found.python)


def _version_of(root: Path, module: Any) -> str:
    """The version of a given tree: the package folder itself, or a folder that holds it."""
    return next((version for place in (root, root / module.PACKAGE) if (version := version_beside(place))), "")


def engine_module(item: EngineRequest) -> Any:
    """The package of an engine that a request names. Raises NotRunnable for one that is not known."""
    if item.name not in REGISTRY:
        raise NotRunnable(f"--engine {item.name}: not known; known are {', '.join(sorted(REGISTRY))}")
    if item.version and not release(item.version):
        raise NotRunnable(
            f"--engine {item.name} {item.version[:40]!r}: that is no version; give its numbers, like 0.12.3, "
            "or leave it out and name a build of your own by --engine-source"
        )
    return REGISTRY[item.name]


def _from_source(request: Request) -> Any | None:
    if not request.engine_source:
        return None
    root = Path(request.engine_source).expanduser()
    for module in REGISTRY.values():
        if module.probe.looks_like(root):
            return module
    raise NotRunnable(
        f"--engine-source {request.engine_source}: no model files of {' or '.join(sorted(REGISTRY))} below it; "
        "give the unpacked package or a checkout"
    )


def _from_argv(argv: Sequence[str]) -> Any | None:
    entry = entry_of(argv)
    return REGISTRY.get(entry.package) if entry is not None else None


def _architecture(evidence: Evidence) -> str:
    try:
        return evidence.target.architecture if evidence.target is not None else ""
    except CheckError:
        return ""


def _at(evidence: Evidence, pointer: str) -> object:
    """What stands at a JSON pointer of the draft's config, None when nothing does."""
    try:
        value: object = evidence.draft.config if evidence.draft is not None else None
    except BadConfig:
        return None
    for part in pointer.split("/")[1:]:
        value = value.get(part) if isinstance(value, dict) else None
    return value
