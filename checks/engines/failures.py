"""What a known failure is, and the failures that come from torch, CUDA and the system under any engine."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Signature:
    """One known failure: the text that shows it, its class, and the way out.

    `told_by`: another class and way out, where the whole line tells more than that it is this failure.
    """

    pattern: re.Pattern[str]
    kind: str
    fatal: bool
    advice: str
    told_by: Callable[[str], tuple[str, str] | None] | None = None

    def read(self, text: str) -> Signature:
        """This failure as a line shows it."""
        told = self.told_by(text) if self.told_by is not None else None
        return self if told is None else replace(self, kind=told[0], advice=told[1])


def known(
    pattern: str,
    kind: str,
    advice: str,
    fatal: bool = True,
    told_by: Callable[[str], tuple[str, str] | None] | None = None,
) -> Signature:
    """A row of a table of failures."""
    return Signature(re.compile(pattern), kind, fatal, advice, told_by)


class Failures:
    """A table of failures; the first row that fits a line counts."""

    def __init__(self, *rows: Signature) -> None:
        self.rows = rows
        # Nearly every line is no failure: one look for any of them says so.
        self._any = re.compile("|".join(f"(?:{row.pattern.pattern})" for row in rows))

    def match(self, text: str) -> Signature | None:
        """The failure a line shows, None when it shows none that is known."""
        if self._any.search(text) is None:
            return None
        return next((row.read(text) for row in self.rows if row.pattern.search(text)), None)


_STATES = (
    "aux-width",
    "the target feeds another number of states than the draft's fc expects: check the layer ids (console check)",
)
_VOCABULARY = (
    "vocabulary",
    "two vocabularies differ in size, of the draft, its map or the target: see ckpt.vocab_map and cfg.vocab_vs_target",
)
_EITHER = (
    "sizes",
    "two sizes differ: of the states (layer ids, cfg.hidden_vs_target) or of a vocabulary (ckpt.vocab_map)",
)
_SIZES = re.compile(
    r"The size of tensor a \((\d{1,9})\) must match the size of tensor b \((\d{1,9})\)"
    r"|shapes cannot be multiplied \(\d{1,9}x(\d{1,9}) and (\d{1,9})x\d{1,9}\)"
)
_OF_VOCABULARY = re.compile(r"lm_head|embed_tokens|[dt]2[dt]\b|hot_token|draft_id_to_target|logits|vocab")
_MANY, _WIDE, _WIDEST, _LARGE = 8, 8192, 16384, 30000
"""The most states a draft is known to read; widths of a state: usual ones, and the widest known, which a small
vocabulary may have as well; and from how many on a size is a vocabulary's, unless it is that of some states together.
"""


def sizes_told(text: str) -> tuple[str, str] | None:
    """(class, way out) by the two sizes that a line says differ; None for a line without.

    States side by side are small multiples of one width. Two vocabularies are not, or of no width that a state has.
    """
    found = _SIZES.search(text)
    if found is None:
        return None
    if _OF_VOCABULARY.search(text):
        return _VOCABULARY
    a, b = (int(size) for size in found.groups() if size is not None)
    width = math.gcd(a, b)
    if not width or max(a, b) > _MANY * width:
        return _VOCABULARY if max(a, b) >= _LARGE else _EITHER
    return _STATES if width <= _WIDE else _EITHER if width <= _WIDEST else _VOCABULARY


WIDTH = (
    known(
        r"mat1 and mat2 shapes cannot be multiplied|The size of tensor a \(\d+\) must match the size of tensor b",
        *_STATES,
        told_by=sizes_told,
    ),
)
COMMON = (
    known(
        r"[Aa]ddress already in use",
        "port-taken",
        "another process owns the port: stop it or choose another; a ready line after this one is not this server's",
    ),
    known(
        r"CUDA out of memory|OutOfMemoryError|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory",
        "out-of-memory",
        "lower the memory fraction or the number of running requests, or free the GPU",
    ),
    known(
        r"Repo id must be in the form", "path-missing", "a model or draft path does not exist on the host: correct it"
    ),
    known(
        r"does not appear to have a file named config\.json|Cannot find any model weights with ",
        "path-missing",
        "a model or draft folder lacks its config or its weights: correct the path, or copy what is missing",
    ),
    known(
        r"config file at '[^']{1,300}' is not a valid JSON file|Unrecognized model in [^ ]{1,300} Should have a",
        "draft-config",
        "the config.json of a model or draft cannot be used: see cfg.aux_ids and cfg.architectures",
    ),
    known(
        r"SafetensorError: Error while deserializing",
        "weights-damaged",
        "a file of weights is cut short or is something else: see ckpt.container",
    ),
    known(
        r"Attempted to load weight \(|size mismatch for [\w.]{1,200}: copying a param",
        "weight-shapes",
        "a weight has another shape than its config says: see ckpt.shapes, cfg.head_dim and ckpt.vocab_map",
    ),
    known(
        r"unrecognized arguments|error: argument --|invalid choice",
        "launch-flags",
        "this version does not take the flag: compare with its --help",
    ),
    known(
        r"KeyError: '[\w.]{1,200}\.weight'", "weight-names", "the checkpoint's tensor names do not fit the model class"
    ),
    known(
        r"must have the same dtype, but got|expected mat1 and mat2 to have the same dtype",
        "dtype",
        "draft and target run in different dtypes: give --dtype",
    ),
    known(
        r"index out of bounds|device-side assert triggered",
        "index-out-of-range",
        "a gather ran out of its table: check the draft's vocabulary map (console check)",
    ),
    known(
        r"NCCL error|ncclSystemError|ncclUnhandledCudaError|Watchdog caught collective operation timeout",
        "nccl",
        "the GPUs could not talk to each other: look at the NCCL lines above and the topology",
    ),
)
