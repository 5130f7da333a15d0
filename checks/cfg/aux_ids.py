"""`cfg.aux_ids`: the ids that choose the target's states, where they stand and whether they are legal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from checks.catalog import check
from checks.cfg.case import layout_for, reads, target_of
from checks.draft import IN_EAGLE_CONFIG, KEY, TOP_LEVEL, AuxIds, Draft
from checks.engines import PROBED, Engine
from checks.errors import BadConfig, CheckError
from checks.evidence import Evidence, Need
from checks.finding import ConfigFix, Finding, Verdict
from checks.patch import set_key
from checks.rules import servings
from checks.similar import similar

ID = "cfg.aux_ids"

_OTHER = re.compile(r"layers?(?:_ids|_indices)?$|layers_to_capture$")

_KINDS: dict[type, str] = {
    str: "a text",
    bool: "true or false",
    float: "a number with a decimal point",
    int: "a number",
    list: "a list",
    dict: "an object",
}


@check(ID, needs=(Need.DRAFT,))
def aux_ids(evidence: Evidence) -> Iterable[Finding]:
    """The ids that choose the target's states are present, in a place the engine reads, and legal.

    `eagle_aux_hidden_state_layer_ids` tells the engine which hidden states of the target feed the draft. SGLang reads
    it only inside `eagle_config`; vLLM reads the top level, newer releases both. Where the list is absent, engines take
    their default states 2, n//2 and n-3 without a word, which is right only for a draft trained on exactly those.

    FAIL: config.json cannot be parsed, or is not in the folder; the value is no list of whole numbers; an id no
    convention can reach on this target; an id twice (engines feed it once, and `fc` is one slot short); an id that the
    capture loop of a named engine never reaches, as the boundary after the last block where it stops before; an
    engine whose own source takes no states from this target's class. WARN: absent, or only where a named engine does
    not look while its defaults are other states (vLLM up to 0.11.0 reads none), or two places that differ; ids that
    break an engine whose release is assumed, or that works only where it was patched; a release that, by the table,
    takes no states from this target's class at all. INFO: a draft that reads no aux states; ids out of order, which
    engines sort; ids that are the numbers of the default states, which are right where id means the state before that
    layer, and one late where it means the one after; an engine whose own source feeds other states than the table of
    its release says. -1 is legal: it means the embedding's output where id means the state after that layer.

    What to do: put the ids the draft was trained with into `eagle_config`; `align.engine_pair` names them when there is
    a cache to tell.
    """
    draft = evidence.draft
    assert draft is not None
    try:
        config = draft.config
    except BadConfig as error:
        yield _unreadable(draft, error)
        return
    layout = layout_for(draft)
    if layout is not None and any(not reads(item, layout) for item in servings(evidence)):
        said = f"not asked: config.json is of the layout of {layout.name}, see cfg.format"
        yield Finding(ID, Verdict.INFO, said, {"layout": layout.name})
        return
    if not draft.uses_aux:
        yield Finding(
            ID,
            Verdict.INFO,
            "the draft reads only the last hidden state (use_aux_hidden_state is false): there are no ids to check",
            {"use_aux_hidden_state": False},
        )
        return
    yield _judge(_Case(draft, config, draft.aux_ids, _layers(evidence), _engines(evidence)))


@dataclass
class _Case:
    """One config's ids, and what was found of them: notes by verdict, in words for the summary."""

    draft: Draft
    config: dict[str, Any]
    ids: AuxIds
    n: int | None
    engines: tuple[Engine, ...]
    notes: list[tuple[Verdict, str]] = field(default_factory=list)
    fix: ConfigFix | None = None

    def say(self, verdict: Verdict, text: str) -> None:
        self.notes.append((verdict, text))


def _judge(case: _Case) -> Finding:
    nested = case.config.get("eagle_config")
    if nested is not None and not isinstance(nested, dict):
        case.say(Verdict.FAIL, f"eagle_config is {_kind(nested)}, not an object, and engines look for ids in it")
    elif case.ids.value is None:
        _absent(case)
    else:
        _legal(case)
        _place(case)
        _reached(case)
    for engine in case.engines:
        if engine.refuses:
            # The table tells of builds as they were released; a patched one may take them.
            case.say(Verdict.FAIL if engine.by_source else Verdict.WARN, engine.refuses)
        if engine.differs:
            case.say(Verdict.INFO, f"{engine.label}: {engine.differs}")
    ranks = [Verdict.FAIL, Verdict.WARN, Verdict.INFO]
    verdict = next((rank for rank in ranks if any(rank is said for said, _ in case.notes)), Verdict.PASS)
    said = [text for rank in ranks for level, text in case.notes if level is rank]
    where = "eagle_config" if case.ids.pointer == IN_EAGLE_CONFIG else "the top level"
    feeds = _feeds(case)
    summary = "; ".join(said) or f"ids {case.ids.value} stand in {where} and are legal" + (
        "" if case.n else " as far as can be told without the target's number of layers"
    )
    if feeds and verdict in (Verdict.PASS, Verdict.INFO):
        summary += "; " + "; ".join(f"{name} feeds states {_list(states)}" for name, states in feeds.items())
    found = {
        "configured_ids": case.ids.value,
        "path": case.ids.pointer if case.ids.value is not None else None,
        "in_eagle_config": case.ids.in_eagle_config,
        "top_level": case.ids.top_level,
        "layers": case.n,
        "feeds": feeds,
    }
    return Finding(ID, verdict, summary, found, case.fix)


def _feeds(case: _Case) -> dict[str, list[int]]:
    """The states each engine feeds under these ids, by its own reading of them: the same ids, other states."""
    found = {}
    for engine in case.engines:
        ids = {IN_EAGLE_CONFIG: case.ids.in_eagle_config, TOP_LEVEL: case.ids.top_level}.get(engine.pointer)
        if engine.rule is None or engine.source == "assumed" or case.n is None:
            continue
        if not (ids is None or isinstance(ids, list)):
            continue
        with suppress(CheckError):
            found[engine.label] = list(engine.rule.served(ids, case.n).states)
    return found


def _absent(case: _Case) -> None:
    states = f"states 2, {case.n // 2} and {case.n - 3} of {case.n} layers" if case.n else "[2, n//2, n-3]"
    text = f"{KEY} is absent: the engine will guess {states}"
    for where, held in (("eagle_config", case.config.get("eagle_config")), ("the top level", case.config)):
        near = _misspelt(held)
        if near:
            text += f"; {near!r} in {where} looks like it, and engines do not read it"
    for where in ("", "eagle_config", "dflash_config", "speculators_config"):
        for name, value in _other_names(case.config.get(where) if where else case.config):
            place = f" in {where}" if where else ""
            text += f"; {name!r:.60}{place} holds {value!s:.60}, and engines do not read it"
    case.say(Verdict.WARN, text)


def _other_names(held: object) -> list[tuple[str, list[Any]]]:
    """Keys under which other trainers and engines keep such ids, with them: a list of numbers, named by layers."""
    if not isinstance(held, dict):
        return []
    return [
        (name, value)
        for name, value in held.items()
        if isinstance(name, str) and name != KEY and _OTHER.search(name) and isinstance(value, list) and len(value) > 1
        if all(_is_whole(item) for item in value) and not similar(KEY, [name], 0.75)
    ]


def _misspelt(held: object) -> str | None:
    names = [name for name in held if isinstance(name, str) and name != KEY] if isinstance(held, dict) else []
    return similar(KEY, names, 0.75) or None


def _legal(case: _Case) -> None:
    value = case.ids.value
    if not isinstance(value, list):
        case.say(Verdict.FAIL, f"{KEY} is {_kind(value)}, not a list of whole numbers")
        return
    if not value:
        case.say(Verdict.FAIL, f"{KEY} is an empty list: no state would reach the draft")
        return
    wrong = [item for item in value if not _is_whole(item)]
    if wrong:
        _not_whole(case, value, wrong)
        return
    if twice := sorted(item for item, times in Counter(value).items() if times > 1):
        case.say(
            Verdict.FAIL,
            f"id {_list(twice)} stands twice: engines capture a state once, so fc gets {len(set(value))} slots for "
            f"{len(value)} ids",
        )
    if below := [item for item in value if item < -1]:
        case.say(Verdict.FAIL, f"id {_list(below)} is negative: only -1, the embedding's output, has a meaning")
    # Read as "the state before that layer" the last id is n; no reading goes beyond.
    if case.n and (above := [item for item in value if item > case.n]):
        case.say(Verdict.FAIL, f"id {_list(above)} is out of range: the target has {case.n} layers")
    if value != sorted(value):
        case.say(Verdict.INFO, f"ids {value} are out of order: engines feed the states ascending, whatever the order")


def _not_whole(case: _Case, value: list[Any], wrong: list[Any]) -> None:
    meant = [_meant(item) for item in value]
    # 2.0 is the number 2 to JSON, and engines that compare numbers take it; one that checks types does not.
    floats = all(isinstance(item, float) for item in wrong)
    loud = not floats or None in meant
    case.say(
        Verdict.FAIL if loud else Verdict.WARN,
        f"ids {value} are not all whole numbers ({', '.join(sorted({_kind(item) for item in wrong}))})",
    )
    whole = [item for item in meant if item is not None]
    top = case.n if case.n is not None else max(whole, default=0)
    if len(set(whole)) == len(meant) and all(-1 <= item <= top for item in whole):
        case.fix = ConfigFix(set_key(case.config, case.ids.pointer, whole))


def _place(case: _Case) -> None:
    """Whether the ids stand where the engine looks."""
    inner, outer = case.ids.in_eagle_config, case.ids.top_level
    if inner is None:
        if case.draft.is_speculators:
            case.say(Verdict.INFO, f"ids {outer} stand at the top level, as the speculators layout has them")
        elif not case.engines or any(engine.name == "sglang" for engine in case.engines):
            case.say(
                Verdict.WARN,
                f"ids {outer} stand only at the top level: SGLang reads them only inside eagle_config and will guess "
                + (f"states 2, {case.n // 2} and {case.n - 3}" if case.n else "[2, n//2, n-3]"),
            )
    for engine in case.engines:
        _unread(case, engine)
    if inner is not None and outer is not None and not _agree(inner, outer):
        case.say(
            Verdict.WARN,
            f"two places differ: eagle_config has {inner}, which SGLang reads, the top level {outer}, which vLLM reads",
        )


def _unread(case: _Case, engine: Engine) -> None:
    """Ids that this engine passes over: what it feeds in their place. SGLang and the top level are told above."""
    ids = case.ids.value
    if engine.rule is None or case.n is None or not isinstance(ids, list):
        return
    inner, outer = case.ids.in_eagle_config, case.ids.top_level
    held = [place for place, value in ((IN_EAGLE_CONFIG, inner), (TOP_LEVEL, outer)) if value is not None]
    if any(place in engine.reads for place in held) or (engine.name == "sglang" and inner is None):
        return
    try:
        states = engine.rule.served(None, case.n).states
    except CheckError:
        return
    # Equal in either meaning of an id, the state before that layer or after it, nothing is lost.
    if list(states) not in (ids, [item + 1 for item in ids if _is_whole(item)]):
        place = "where they stand" if engine.reads else "from the config at all"
        why = f" ({engine.note})" if engine.note else ""
        case.say(Verdict.WARN, f"{engine.label} reads no ids {place} and feeds states {_list(list(states))}{why}")


def _reached(case: _Case) -> None:
    """Whether the engines' capture loops reach the states these ids mean to them; nothing of ids already condemned."""
    ids = case.ids.value
    if case.n is None or not isinstance(ids, list) or any(verdict is Verdict.FAIL for verdict, _ in case.notes):
        return
    if sorted(map(str, ids)) == sorted(map(str, (2, case.n // 2, case.n - 3))):
        case.say(
            Verdict.INFO,
            f"ids {ids} are the numbers of the default states, as a trainer that counts boundaries writes them (k=id)",
        )
    for engine in case.engines:
        if engine.rule is None or case.ids.pointer != engine.pointer:
            continue
        try:
            problem = engine.rule.served(ids, case.n).problem
        except CheckError:
            continue
        if problem is None:
            continue
        # Index 0 fails only where nobody patched the build, and an engine that is assumed condemns nothing.
        sure = engine.source == PROBED or (engine.source != "assumed" and "unless it was patched" not in problem)
        last = " (the boundary after the last block)" if f"R_{case.n} " in problem else ""
        case.say(Verdict.FAIL if sure else Verdict.WARN, f"{engine.label}: {problem}{last}")


def _agree(inner: object, outer: object) -> bool:
    """Whether the lists can mean the same states: equal, or one apart as SGLang (k=id+1) and vLLM (k=id) spell them."""
    if inner == outer or not isinstance(inner, list) or not isinstance(outer, list) or len(inner) != len(outer):
        return inner == outer
    if not all(_is_whole(item) for item in (*inner, *outer)):
        return False
    return all(b == a + 1 for a, b in zip(sorted(inner), sorted(outer)))


def _unreadable(draft: Draft, error: BadConfig) -> Finding:
    if draft.config_path is None and draft.path.is_dir():
        said = f"{draft.path}: no config.json in it: no engine can load this draft"
        return Finding(ID, Verdict.FAIL, said, {"file": str(draft.path / "config.json")})
    if draft.config_path is None:
        return Finding(ID, Verdict.UNKNOWN, f"not checked: {error}", {"needs": [Need.DRAFT.value]})
    return Finding(ID, Verdict.FAIL, f"{error}: no engine can load this draft", {"file": str(draft.config_path)})


def _layers(evidence: Evidence) -> int | None:
    target = target_of(evidence)
    return target.n if target is not None else None


def _engines(evidence: Evidence) -> tuple[Engine, ...]:
    try:
        return evidence.engines
    except CheckError:
        return ()


def _is_whole(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _meant(item: object) -> int | None:
    """The whole number a text or a float spells, or None."""
    if _is_whole(item):
        return int(str(item))
    if isinstance(item, float) and item.is_integer():
        return int(item)
    return int(item) if isinstance(item, str) and re.fullmatch(r"\s*-?[0-9]{1,9}\s*", item) else None


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "null")


def _list(items: list[int]) -> str:
    return ", ".join(str(item) for item in items)
