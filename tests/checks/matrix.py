"""Right and wrong caches of every kind, with the noise that precision adds: what the error rates are measured on.

`python -m tests.checks.matrix` measures them and writes the table into docs/method.md. The states are those of the
shipped trained target. Precision is added where it arises: a forward in bfloat16, and forwards with weights rounded to
8 bits a row, 4 bits in groups of 32 and 4 bits a row, as a served target may have. The other target is the shipped one
with its layers in another order and the token ids of its embedding turned round: really trained weights, another model.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from checks.caches import Cache, CacheSample, Place
from checks.capture import Capture
from checks.finding import Finding, Verdict
from tests.checks import pair

PAGE = pair.DEMO.parents[1] / "docs" / "method.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

PRECISIONS = ("float32", "bfloat16", "8 bit", "4 bit in groups", "4 bit a row")
LENGTHS = (16, 24, 48, 192)
TEXTS = (1, 2, 4, 8)
"""Tokens a text and texts a cache: short ones first, the default's eight texts last."""


# -- targets -----------------------------------------------------------------------------------------------------------


def rounded(values: np.ndarray) -> np.ndarray:
    """float32 rounded to the nearest bfloat16."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


class HalfTarget(pair.TinyTarget):
    """Every layer's input, norms and output in bfloat16."""

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return rounded(super().norm(x, name))

    def _layer(self, x: np.ndarray, prefix: str) -> np.ndarray:
        return rounded(super()._layer(rounded(x), prefix))


def with_bits(bits: int, group: int = 0) -> pair.TinyTarget:
    """The target with the matrices of its layers rounded to so many bits, one scale a row or a group of a row."""
    target, most = HalfTarget(), 2 ** (bits - 1) - 1
    for name, weight in target.weights.items():
        if ".layers." in name and weight.ndim == 2:
            parts = weight.reshape(len(weight), -1, group or weight.shape[1])
            scale = np.abs(parts).max(-1, keepdims=True) / most
            target.weights[name] = (np.round(parts / scale) * scale).reshape(weight.shape).astype(np.float32)
    return target


def another(seed: int = 0) -> pair.TinyTarget:
    """Trained weights of another model: see the first lines."""
    target = HalfTarget()
    chance, was = np.random.default_rng(seed), dict(target.weights)
    order = chance.permutation(pair.N)
    for name in was:
        if ".layers." in name:
            parts = name.split(".")
            parts[2] = str(order[int(parts[2])])
            target.weights[name] = was[".".join(parts)]
    table = was["model.embed_tokens.weight"]
    target.weights["model.embed_tokens.weight"] = table[chance.permutation(len(table))]
    return target


MAKERS: dict[str, Callable[[], pair.TinyTarget]] = {
    "float32": pair.TinyTarget,
    "bfloat16": HalfTarget,
    "8 bit": lambda: with_bits(8),
    "4 bit in groups": lambda: with_bits(4, 32),
    "4 bit a row": lambda: with_bits(4),
    "other": another,
}


@lru_cache(maxsize=len(MAKERS))
def made(kind: str) -> pair.TinyTarget:
    return MAKERS[kind]()


@lru_cache(maxsize=128)
def states(kind: str, index: int) -> np.ndarray:
    """R_0 … R_n of shipped text `index` by this target, [n+1, S, H]."""
    return made(kind).states(pair.text(index))


# -- faults ------------------------------------------------------------------------------------------------------------

Ks = tuple[int, ...]
Make = Callable[[Ks, int, np.random.Generator], np.ndarray]
"""(trained states, text, chance) -> the slots a cache holds, [S, m, H]."""


def _of(ks: Ks, index: int, kind: str = "bfloat16") -> np.ndarray:
    return np.stack([states(kind, index)[k] for k in ks], axis=1)


def _moved(*steps: int) -> Make:
    return lambda ks, index, chance: _of(tuple(k + step for k, step in zip(ks, steps)), index)


def _permuted(ks: Ks, index: int, chance: np.random.Generator) -> np.ndarray:
    orders = [order for order in itertools.permutations(ks) if order != ks]
    return _of(orders[int(chance.integers(len(orders)))], index)


def _rotated(ks: Ks, index: int, chance: np.random.Generator) -> np.ndarray:
    turn = np.linalg.qr(np.random.default_rng(7).normal(size=(pair.H, pair.H)))[0].astype(np.float32)
    return _of(ks, index) @ turn


def _nan(ks: Ks, index: int, chance: np.random.Generator) -> np.ndarray:
    slots = _of(ks, index).copy()
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
    "embedding first": lambda ks, index, chance: _of((0, *ks[:-1]), index),
    "other target": lambda ks, index, chance: _of(ks, index, "other"),
    "rotated": _rotated,
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


def told(precision: str, texts: Ks, length: int = 0) -> Capture:
    """A capture of all states of these texts by a target that runs in this precision."""
    samples = [Told(pair.text(i)[: length or None], states(precision, i)[:, : length or None]) for i in texts]
    return Capture("all-states", "sglang", None, None, pair.N + 1, tuple(samples), Path("told"))


@dataclass(frozen=True)
class Input:
    """A cache in memory, held against a capture in another precision by the checks as they are."""

    make: Make
    ks: Ks
    precision: str
    texts: Ks
    length: int
    seed: int

    def findings(self, folder: Path) -> list[Finding]:
        """What align.states says; `folder` takes the draft's config."""
        chance = np.random.default_rng(self.seed)
        held = [Held(pair.text(i)[: self.length], self.make(self.ks, i, chance)[: self.length]) for i in self.texts]
        draft = folder / "-".join(map(str, self.ks))
        if not draft.is_dir():
            pair.draft_folder(draft, [k - 1 for k in self.ks])
        places = tuple(Place(Path("held"), index) for index in range(len(held)))
        cache = Cache(Path("held"), "held", places, 3, pair.H, "none", None, lambda place: held[place.index])
        case = pair.Case(draft, Path("."), opened=cache, engines=(pair.engine(),))
        case.captures = (told(self.precision, self.texts, self.length),)
        return case.run("align.states")


def outcome(found: list[Finding]) -> Verdict:
    """What someone reads off: the worst that was found, UNKNOWN only where nothing failed."""
    verdicts = {item.verdict for item in found}
    worst = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN)
    return next((verdict for verdict in worst if verdict in verdicts), Verdict.PASS)


def inputs(make: Make, rounds: int, seed: int) -> Iterator[Input]:
    """Every precision at every length and number of texts, `rounds` times, each with states and texts by chance."""
    chance = np.random.default_rng(seed)
    for _ in range(rounds):
        for precision, (length, count) in itertools.product(PRECISIONS, zip(LENGTHS, TEXTS)):
            ks = tuple(sorted(chance.choice(np.arange(1, pair.N), 3, replace=False).tolist()))
            texts = tuple(chance.choice(12, count, replace=False).tolist())
            yield Input(make, ks, precision, texts, length, int(chance.integers(1 << 30)))


def measure(folder: Path, rounds: int) -> dict[str, Counter[Verdict]]:
    """How often each outcome was had, by what was in the cache; `right` among them. Deterministic."""
    kinds = {"right": RIGHT, **FAULTS}
    return {
        name: Counter(outcome(item.findings(folder)) for item in inputs(make, rounds, number))
        for number, (name, make) in enumerate(kinds.items())
    }


# -- the table ---------------------------------------------------------------------------------------------------------


def adjacent() -> list[tuple[float, float]]:
    """(cosine, relative distance) of R_k and R_k+1, median over all tokens of all texts."""
    from checks.distance import cosine, relative

    out = []
    for k in range(pair.N):
        below, above = (np.concatenate([states("float32", i)[at] for i in range(12)]) for at in (k, k + 1))
        out.append((float(np.median(cosine(above, below))), float(np.median(relative(above, below)))))
    return out


def noise() -> list[tuple[str, float, float]]:
    """Per precision the median relative distance of its R_3 and R_10 to those in float32."""
    from checks.distance import relative

    def apart(kind: str, k: int) -> float:
        each = [relative(states(kind, i)[k], states("float32", i)[k]) for i in range(12)]
        return float(np.median(np.concatenate(each)))

    return [(kind, apart(kind, 3), apart(kind, 10)) for kind in PRECISIONS[1:]]


def lines(counts: dict[str, Counter[Verdict]]) -> list[str]:
    """The measured tables as Markdown."""
    out = ["| in the cache | inputs | FAIL | UNKNOWN | WARN | PASS | wrong | undecided |", "|---" + "|--:" * 7 + "|"]
    for name, seen in counts.items():
        total = seen.total()
        wrong = seen[Verdict.FAIL] + seen[Verdict.WARN] if name == "right" else seen[Verdict.PASS]
        cells = [seen[verdict] for verdict in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN, Verdict.PASS)]
        rates = f"{100 * wrong / total:.1f} % | {100 * seen[Verdict.UNKNOWN] / total:.1f} %"
        out.append(f"| {name} | {total} | {' | '.join(map(str, cells))} | {rates} |")
    out += ["", "| states | " + " | ".join(f"{k}–{k + 1}" for k in range(pair.N)) + " |", "|---" * (pair.N + 1) + "|"]
    beside = adjacent()
    out.append("| cosine | " + " | ".join(f"{cosine:.2f}" for cosine, _ in beside) + " |")
    out.append("| distance | " + " | ".join(f"{distance:.2f}" for _, distance in beside) + " |")
    out += ["", "| precision of the target | R_3 | R_10 |", "|---|--:|--:|"]
    out += [f"| {kind} | {low:.3f} | {high:.3f} |" for kind, low, high in noise()]
    return out


ROUNDS = 6
"""120 inputs of each kind."""


def main() -> None:
    """Measure, print, and write the table into the page."""
    with tempfile.TemporaryDirectory() as folder:
        table = "\n".join(lines(measure(Path(folder), ROUNDS)))
    print(table)
    page = PAGE.read_text("utf-8")
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
