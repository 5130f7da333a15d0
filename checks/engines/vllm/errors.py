"""vLLM's failures by the text they print: class, whether the process dies of it, and what to do."""

from __future__ import annotations

from checks.engines.failures import COMMON, WIDTH, Failures, known

# The first that fits counts: what says the cause stands before what only says that something died.
FAILURES = Failures(
    *WIDTH,
    known(
        r"Expected size \d+ but got size \d+|expected hidden_size \d+|hidden_states.{0,60}shape mismatch",
        "aux-width",
        "the target feeds another number of states than the draft's fc expects: check the layer ids (console check)",
    ),
    known(
        r"Model does not support EAGLE3 interface|has no attribute 'set_aux_hidden_state_layers'",
        "target-unsupported",
        "this vLLM cannot capture states of this target: use a version that supports it",
    ),
    known(
        r"No available memory for the cache blocks|is larger than the available KV cache memory"
        r"|is less than desired GPU memory utilization",
        "out-of-memory",
        "raise --gpu-memory-utilization, lower --max-model-len, or free the GPU",
    ),
    known(
        r"Model architectures .{0,300} are not supported for now|failed to be inspected",
        "architecture-unknown",
        "this vLLM does not know the architecture: check the config's architectures, or use a newer version",
    ),
    *COMMON,
    known(
        r"EngineCore (?:failed to start|encountered a fatal error|hit an exception)",
        "exception",
        "the engine process failed: the traceback follows",
    ),
    known(
        r"Engine core initialization failed",
        "start-failed",
        "the server ends before it was up: the cause is in the lines above",
    ),
    known(
        r"EngineDeadError|WorkerProc initialization failed|died unexpectedly|Engine core proc \S{1,80} died",
        "child-died",
        "a process of the server died: the cause is in the lines above",
    ),
)
