"""SGLang's failures by the text they print: class, whether the process dies of it, and what to do."""

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


def _known(pattern: str, kind: str, advice: str, fatal: bool = True) -> Signature:
    return Signature(re.compile(pattern), kind, fatal, advice)


# The first that fits counts: what says the cause stands before what only says that something died.
SIGNATURES: tuple[Signature, ...] = (
    _known(
        r"mat1 and mat2 shapes cannot be multiplied|The size of tensor a \(\d+\) must match the size of tensor b",
        "aux-width",
        "the target feeds another number of states than the draft's fc expects: check the layer ids (console check)",
    ),
    _known(
        r"captured \d+ of \d+ aux hidden states|The model captured \d+ aux hidden states",
        "aux-width",
        "some configured ids name states that the target never captures: check the layer ids (console check)",
    ),
    _known(
        r'can only concatenate str \(not "int"\) to str',
        "aux-ids-type",
        "the layer ids in the draft's config are text: write them as numbers",
    ),
    _known(
        r"set_eagle3_layers_to_capture",
        "target-unsupported",
        "this SGLang cannot capture states of this target: use a version that supports it",
    ),
    _known(
        r"EAGLE3 currently only supports 1 layer",
        "draft-unsupported",
        "the draft has several layers: SGLang before 0.5.12 serves one only",
    ),
    _known(
        r"object has no attribute 'draft_vocab_size'",
        "draft-config",
        "the draft's config lacks draft_vocab_size: add it (null shares the target's head)",
    ),
    _known(
        r"address already in use",
        "port-taken",
        "another process owns the port: stop it or choose another; a ready line after this one is not this server's",
    ),
    _known(r"Port is already in use", "port-taken", "another process owns an internal port: stop it or choose another"),
    _known(
        r"CUDA out of memory|OutOfMemoryError|Not enough memory\. Please try to increase|out of memory\. Try to lower",
        "out-of-memory",
        "lower --mem-fraction-static or --max-running-requests, or free the GPU",
    ),
    _known(
        r"KV cache pool is full\. Retract requests",
        "kv-full",
        "requests are put back for want of cache: lower the load or --max-running-requests",
        fatal=False,
    ),
    _known(
        r"greater than the derived context_length",
        "context-length",
        "draft and target differ in context length: set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
    ),
    _known(
        r"Model architectures .{0,300} (?:are not supported for now|failed to be inspected)",
        "architecture-unknown",
        "this SGLang does not know the architecture: check the config's architectures, or use a newer version",
    ),
    _known(
        r"Unknown speculative algorithm name",
        "launch-flags",
        "the speculative algorithm is not known to this version: EAGLE3 is the one for these drafts",
    ),
    _known(
        r"unrecognized arguments|error: argument --|invalid choice",
        "launch-flags",
        "this version does not take the flag: compare with its --help",
    ),
    _known(
        r"Repo id must be in the form", "path-missing", "a model or draft path does not exist on the host: correct it"
    ),
    _known(
        r"KeyError: '[\w.]{1,200}\.weight'", "weight-names", "the checkpoint's tensor names do not fit the model class"
    ),
    _known(
        r"must have the same dtype, but got|expected mat1 and mat2 to have the same dtype",
        "dtype",
        "draft and target run in different dtypes: give --dtype",
    ),
    _known(
        r"Cannot find the config file for \w+",
        "draft-quantization",
        "the draft inherits the target's quantization: give --speculative-draft-model-quantization unquant",
    ),
    _known(
        r"trtllm_mla backend can only be used with MLA",
        "draft-backend",
        "the draft inherits the target's attention backend: give --speculative-draft-attention-backend",
    ),
    _known(
        r"index out of bounds|device-side assert triggered",
        "index-out-of-range",
        "a gather ran out of its table: check the draft's vocabulary map (console check)",
    ),
    _known(
        r"NCCL error|ncclSystemError|Watchdog caught collective operation timeout",
        "nccl",
        "the GPUs could not talk to each other: look at the NCCL lines above and the topology",
    ),
    _known(
        r"Capture .{0,60}graph failed",
        "graph-capture",
        "graph capture failed: the line above says why; --disable-cuda-graph gets past it",
    ),
    _known(
        r"memory leak detected", "memory-leak", "the cache's books do not add up: report it to the engine's project"
    ),
    _known(
        r"[Ww]atchdog timeout",
        "watchdog",
        "a step took longer than the watchdog allows: look at the last batch, or raise --watchdog-timeout",
    ),
    _known(
        r"Health check failed\. Server couldn't get a response",
        "unhealthy",
        "the scheduler does not answer: it hangs or is overloaded",
        fatal=False,
    ),
    _known(
        r"Initialization failed\.",
        "start-failed",
        "the server ends before it was up: the cause is in the lines above",
    ),
    _known(
        r"(?:Scheduler|DetokenizerManager|TokenizerManager|DataParallelController) hit an exception",
        "exception",
        "a process of the server failed: the traceback follows",
    ),
    _known(
        r"Received sigquit from a child process|SIGQUIT received|Subprocess \S{1,80} \(pid=\d+\) crashed"
        r"|scheduler died during initialization|Sleeping 5 seconds before crash diagnostics",
        "child-died",
        "a process of the server died: the cause is in the lines above",
    ),
)


def match(text: str) -> Signature | None:
    """The failure a line shows, None when it shows none that is known."""
    return next((signature for signature in SIGNATURES if signature.pattern.search(text)), None)
