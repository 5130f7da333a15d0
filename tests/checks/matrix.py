"""Right and wrong caches of every kind, with the noise that precision adds: what the error rates are measured on.

`python -m tests.checks.matrix` measures them and writes the tables into docs/method.md. A ground is a trained target,
another one of the same width that was trained apart from it, texts, and the precisions a served target may have. The
limits of the rule were found on the first ground. The others were drawn when the rule stood, and have nothing of the
first but the way a Llama is computed: target, text, depth, width, heads, embedding, kinds of rounding, lengths.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from checks.caches import Cache, CacheSample, Place
from checks.capture import Capture
from checks.distance import cosine, relative
from checks.finding import Finding, Verdict
from tests.checks import pair
from tests.checks.files import write_tensors
from tests.checks.precisions import EXACT, HELD_OUT, TUNED, Precision, half, rounded
from tests.checks.trained import trained

PAGE = pair.DEMO.parents[1] / "docs" / "method.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

# -- grounds -----------------------------------------------------------------------------------------------------------

Ks = tuple[int, ...]


class Llama(pair.TinyTarget):
    """The forward of the shipped target, over any config and weights."""

    def __init__(self, config: Mapping[str, object], weights: Mapping[str, np.ndarray]) -> None:
        self.config = dict(config)
        self.weights = dict(weights)


@dataclass(frozen=True, eq=False)
class Ground:
    """Where inputs come from. `sizes`: tokens a text and texts a cache. `ground` and `other` give exact targets."""

    name: str
    title: str
    target: Callable[[], pair.TinyTarget]
    other: Callable[[], pair.TinyTarget]
    text: Callable[[int], np.ndarray]
    precisions: tuple[Precision, ...]
    sizes: tuple[tuple[int, int], ...]
    texts: int = 12
    common: float = 0.0
    """Length of a direction that all tokens and inner states have in common, in lengths of a state: large models have
    some, of a few columns, and by them all their states are alike."""

    def __str__(self) -> str:
        return self.name

    @property
    def n(self) -> int:
        """Its layers."""
        return int(self.target().config["num_hidden_layers"])

    @property
    def hidden(self) -> int:
        """Its width."""
        return int(self.target().config["hidden_size"])

    def states(self, kind: str, index: int) -> np.ndarray:
        """R_0 … R_n of text `index`, [n+1, S, H]: by the target in a precision, or by the `other` one."""
        return _states(self, kind, index)

    def slots(self, ks: Ks, index: int, kind: str = "bfloat16") -> np.ndarray:
        """States as the slots of a cache, [S, m, H]."""
        return np.stack([self.states(kind, index)[k] for k in ks], axis=1)

    def told(self, precision: str, texts: Ks, length: int = 0) -> Capture:
        """A capture of all states of these texts by a target that runs in this precision."""
        samples = [Told(self.text(i)[: length or None], self.states(precision, i)[:, : length or None]) for i in texts]
        return Capture("all-states", "sglang", None, None, self.n + 1, tuple(samples), Path("told"))

    def folder(self, path: Path) -> Path:
        """The target as a folder: its config, and the norm that N takes."""
        if not path.is_dir():
            target = self.target()
            path.mkdir(parents=True)
            config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260, **target.config}
            (path / "config.json").write_text(json.dumps(config), "utf-8")
            write_tensors(
                path / "model.safetensors",
                {
                    name: target.weights[name].astype(np.float32)
                    for name in ("model.embed_tokens.weight", "model.norm.weight")
                },
            )
        return path


@lru_cache(maxsize=64)
def _in_precision(ground: Ground, kind: str) -> pair.TinyTarget:
    if kind == "other":
        return half(ground.other())
    return next(item for item in ground.precisions if item.name == kind).make(ground.target())


@lru_cache(maxsize=256)
def _states(ground: Ground, kind: str, index: int) -> np.ndarray:
    found = _in_precision(ground, kind).states(ground.text(index))
    if ground.common:
        found = found.copy()
        found[1:-1] += _common(ground)
    return found if kind == EXACT.name else rounded(found)


@lru_cache(maxsize=8)
def _common(ground: Ground) -> np.ndarray:
    length = float(np.median(np.linalg.norm(ground.target().states(ground.text(0))[ground.n // 2], axis=-1)))
    out = np.zeros(ground.hidden, dtype=np.float32)
    out[[5, ground.hidden // 2, ground.hidden - 7]] = length * ground.common / np.sqrt(3)
    return out


@lru_cache(maxsize=8)
def _llama(name: str) -> Llama:
    held = trained(name)
    return Llama(held.config, held.weights)


SIZES = ((16, 1), (24, 2), (48, 4), (192, 8))
"""Tokens a text and texts a cache: short ones first, the default's eight texts last."""

SHIPPED = Ground(
    "shipped",
    "The shipped target, on which the limits were found",
    pair.target,
    lambda: _llama("tests128"),
    pair.text,
    TUNED,
    SIZES,
)
PROSE = Ground(
    "prose",
    "Held out: other target, text, sizes and roundings",
    lambda: _llama("prose96"),
    lambda: _llama("library96"),
    lambda index: trained("prose96").texts[index],
    HELD_OUT,
    ((16, 1), (16, 4), (32, 2), (128, 8)),
)
ALIKE = replace(
    SHIPPED, name="alike", title="The first, with a few large columns that all states have in common", common=2.0
)
PROSE_ALIKE = replace(PROSE, name="prose alike", title="The second, with larger ones, after the change", common=4.0)
GROUNDS = (SHIPPED, PROSE, ALIKE, PROSE_ALIKE)


# -- faults ------------------------------------------------------------------------------------------------------------

Make = Callable[[Ground, Ks, int, np.random.Generator], np.ndarray]
"""(ground, trained states, text, chance) -> the slots a cache holds, [S, m, H]."""


def _moved(*steps: int) -> Make:
    return lambda ground, ks, index, chance: ground.slots(tuple(k + step for k, step in zip(ks, steps)), index)


def _permuted(ground: Ground, ks: Ks, index: int, chance: np.random.Generator) -> np.ndarray:
    orders = [order for order in itertools.permutations(ks) if order != ks]
    return ground.slots(orders[int(chance.integers(len(orders)))], index)


def _other(ground: Ground, ks: Ks, index: int, chance: np.random.Generator) -> np.ndarray:
    """States of the other target, from as deep in it as they would be in the right one, or as near as it has layers."""
    there = len(ground.states("other", index)) - 1
    return ground.slots(tuple(max(round(k * there / ground.n), 1) for k in ks), index, "other")


def _rotated(ground: Ground, ks: Ks, index: int, chance: np.random.Generator) -> np.ndarray:
    turn = np.linalg.qr(np.random.default_rng(7).normal(size=(ground.hidden, ground.hidden)))[0].astype(np.float32)
    return ground.slots(ks, index) @ turn


def _nan(ground: Ground, ks: Ks, index: int, chance: np.random.Generator) -> np.ndarray:
    slots = ground.slots(ks, index).copy()
    slots[:, int(chance.integers(len(ks)))] = np.nan
    return slots


RIGHT: Make = _moved(0, 0, 0)
FAULTS: dict[str, Make] = {
    "all one late": _moved(1, 1, 1),
    "all one early": _moved(-1, -1, -1),
    **{
        f"slot {slot} one {'late' if step > 0 else 'early'}": _moved(*(step * (i == slot) for i in range(3)))
        for slot in range(3)
        for step in (1, -1)
    },
    "permuted": _permuted,
    "embedding first": lambda ground, ks, index, chance: ground.slots((0, *ks[:-1]), index),
    "other target": _other,
    "rotated": _rotated,
    "a token late": lambda ground, ks, index, chance: np.roll(ground.slots(ks, index), 1, axis=0),
    "not a number": _nan,
}
"""What stands in the cache in place of the trained states. A truncated file is a fault of files: see the tests."""


# -- one input ---------------------------------------------------------------------------------------------------------


class Held(CacheSample):
    """A cached sample in memory, rounded to bfloat16 as on disk."""

    def __init__(self, ids: np.ndarray, slots: np.ndarray) -> None:
        self.name = "held"
        self._ids, self._slots = ids, rounded(slots)

    @property
    def token_ids(self) -> np.ndarray:
        return self._ids

    @property
    def loss_mask(self) -> None:
        return None

    def slot(self, index: int, start: int, stop: int) -> np.ndarray:
        return self._slots[start:stop, index]

    def final(self, start: int, stop: int) -> None:
        return None


@dataclass(frozen=True)
class Told:
    """A captured sample in memory: all states [n+1, S, H]."""

    token_ids: np.ndarray
    all: np.ndarray

    @property
    def positions(self) -> np.ndarray:
        return np.arange(len(self.token_ids))

    def slot(self, index: int, start: int, stop: int) -> np.ndarray:
        return self.all[index, start:stop]

    def block(self, start: int, stop: int) -> np.ndarray:
        return self.all[:, start:stop].transpose(1, 0, 2)


@dataclass(frozen=True)
class Input:
    """A cache in memory, held against a capture in another precision by the checks as they are."""

    ground: Ground
    make: Make
    ks: Ks
    precision: str
    texts: Ks
    length: int
    seed: int

    def findings(self, folder: Path) -> list[Finding]:
        """What align.states says; `folder` takes the configs of target and draft."""
        ground, chance = self.ground, np.random.default_rng(self.seed)
        held = [
            Held(ground.text(i)[: self.length], self.make(ground, self.ks, i, chance)[: self.length])
            for i in self.texts
        ]
        draft = folder / ground.name / "-".join(map(str, self.ks))
        if not draft.is_dir():
            pair.draft_folder(draft, [k - 1 for k in self.ks])
            config = json.loads((draft / "config.json").read_text("utf-8"))
            (draft / "config.json").write_text(json.dumps({**config, "hidden_size": ground.hidden}), "utf-8")
        places = tuple(Place(Path("held"), index) for index in range(len(held)))
        cache = Cache(Path("held"), "held", places, 3, ground.hidden, "none", None, lambda place: held[place.index])
        target = ground.folder(folder / ground.name / "target")
        case = pair.Case(draft, Path("."), target, engines=(pair.engine(),), opened=cache)
        case.captures = (ground.told(self.precision, self.texts, self.length),)
        return case.run("align.states")


def outcome(found: list[Finding]) -> Verdict:
    """What someone reads off: the worst that was found, UNKNOWN only where nothing failed."""
    verdicts = {item.verdict for item in found}
    worst = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN)
    return next((verdict for verdict in worst if verdict in verdicts), Verdict.PASS)


def inputs(ground: Ground, make: Make, rounds: int, seed: int) -> Iterator[Input]:
    """Every precision at every length and number of texts, `rounds` times, each with states and texts by chance."""
    chance = np.random.default_rng(seed)
    for _ in range(rounds):
        for precision, (length, count) in itertools.product(ground.precisions, ground.sizes):
            ks = tuple(sorted(chance.choice(np.arange(1, ground.n), 3, replace=False).tolist()))
            texts = tuple(chance.choice(ground.texts, count, replace=False).tolist())
            yield Input(ground, make, ks, precision.name, texts, length, int(chance.integers(1 << 30)))


@dataclass
class Seen:
    """What one kind of input had: how often each outcome, and the least distance of any slot to its nearest state."""

    outcomes: Counter[Verdict]
    nearest: float = np.inf

    @property
    def total(self) -> int:
        return self.outcomes.total()


def measure(ground: Ground, folder: Path, rounds: int) -> dict[str, Seen]:
    """How often each outcome was had, by what was in the cache; `right` among them. Deterministic."""
    out: dict[str, Seen] = {}
    for number, (name, make) in enumerate({"right": RIGHT, **FAULTS}.items()):
        seen = out[name] = Seen(Counter())
        for item in inputs(ground, make, rounds, number):
            found = item.findings(folder)
            seen.outcomes[outcome(found)] += 1
            near = [slot["distance"] for slot in found[0].evidence["slots"] if slot["distance"] is not None]
            seen.nearest = min(near, default=seen.nearest) if seen.nearest > min(near, default=np.inf) else seen.nearest
    return out


# -- the tables --------------------------------------------------------------------------------------------------------


def adjacent(ground: Ground) -> list[tuple[float, float]]:
    """(cosine, relative distance) of R_k and R_k+1, median over all tokens of all texts."""
    out = []
    for k in range(ground.n):
        below, above = (
            np.concatenate([ground.states(EXACT.name, i)[at] for i in range(ground.texts)]) for at in (k, k + 1)
        )
        out.append((float(np.median(cosine(above, below))), float(np.median(relative(above, below)))))
    return out


def noise(ground: Ground, k: int) -> list[tuple[str, float]]:
    """Per precision the median relative distance of its R_k to that of the exact target."""

    def apart(kind: str) -> float:
        each = [relative(ground.states(kind, i)[k], ground.states(EXACT.name, i)[k]) for i in range(ground.texts)]
        return float(np.median(np.concatenate(each)))

    return [(item.name, apart(item.name)) for item in ground.precisions[1:]]


def wrong(name: str, seen: Seen) -> int:
    """Alarms on right inputs, all-clears on faulty ones."""
    out = seen.outcomes
    return out[Verdict.FAIL] + out[Verdict.WARN] if name == "right" else out[Verdict.PASS]


def lines(ground: Ground, counts: Mapping[str, Seen]) -> list[str]:
    """The measured tables of a ground as Markdown."""
    out = ["| in the cache | inputs | FAIL | UNKNOWN | WARN | PASS | wrong | undecided |", "|---" + "|--:" * 7 + "|"]
    for name, seen in counts.items():
        cells = [seen.outcomes[verdict] for verdict in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN, Verdict.PASS)]
        shares = (wrong(name, seen) / seen.total, seen.outcomes[Verdict.UNKNOWN] / seen.total)
        rates = " | ".join(f"{100 * share:.1f} %" for share in shares)
        out.append(f"| {name} | {seen.total} | {' | '.join(map(str, cells))} | {rates} |")
    out += ["", "| states | " + " | ".join(f"{k}–{k + 1}" for k in range(ground.n)) + " |"]
    out.append("|---" * (ground.n + 1) + "|")
    beside = adjacent(ground)
    out.append("| cosine | " + " | ".join(f"{cosine:.3f}" for cosine, _ in beside) + " |")
    out.append("| distance | " + " | ".join(f"{distance:.2f}" for _, distance in beside) + " |")
    ks = (ground.n // 4, ground.n * 5 // 6)
    out += ["", f"| precision of the target | R_{ks[0]} | R_{ks[1]} |", "|---|--:|--:|"]
    low, high = (noise(ground, k) for k in ks)
    out += [f"| {kind} | {near:.3f} | {far:.3f} |" for (kind, near), (_, far) in zip(low, high)]
    nearest = counts["other target"].nearest
    out += ["", f"The slot of another target that came nearest to any state was {nearest:.2f} away."]
    return out


ROUNDS = 6
"""120 inputs of each kind."""


def main() -> None:
    """Measure, print, and write the tables into the page."""
    parts = []
    for ground in GROUNDS:
        with tempfile.TemporaryDirectory() as folder:
            parts += ["", f"### {ground.title}", "", *lines(ground, measure(ground, Path(folder), ROUNDS))]
        print("\n".join(parts), flush=True)
    table = "\n".join(parts)
    page = PAGE.read_text("utf-8")
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{table}\n{END}{rest.split(END)[1]}", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
