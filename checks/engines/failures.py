"""What a known failure is, and the failures that come from torch, CUDA and the system under any engine."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Signature:
    """One known failure: the text that shows it, its class, and the way out."""

    pattern: re.Pattern[str]
    kind: str
    fatal: bool
    advice: str


def known(pattern: str, kind: str, advice: str, fatal: bool = True) -> Signature:
    """A row of a table of failures."""
    return Signature(re.compile(pattern), kind, fatal, advice)


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
        return next((row for row in self.rows if row.pattern.search(text)), None)


WIDTH = (
    known(
        r"mat1 and mat2 shapes cannot be multiplied|The size of tensor a \(\d+\) must match the size of tensor b",
        "aux-width",
        "the target feeds another number of states than the draft's fc expects: check the layer ids (console check)",
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
