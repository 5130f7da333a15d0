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
        # The line of the source in a traceback: the target gave its last state alone, for no id was one of its layers.
        r"hidden_states, aux_hidden_states = (?:model_)?output",
        "aux-width",
        "the target fed no states at all: no id in the draft's config is the number of a layer (console check)",
    ),
    known(
        r"Using (?:Eagle3 )?auxiliary layers from (?:speculative )?config: \([^()]{0,200}'",
        "aux-ids-type",
        "the layer ids in the draft's config are text, which no layer's number equals: write them as numbers",
        fatal=False,
    ),
    known(
        r"Model does not support EAGLE3 interface|has no attribute 'set_aux_hidden_state_layers'"
        r"|Eagle3 is only supported for ",
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
        r"allocation is less than requested memory for kv",
        "out-of-memory",
        "the host has less memory than the cache was promised: lower VLLM_CPU_KVCACHE_SPACE, or free memory",
    ),
    known(
        r"Invalid repository ID or local directory specified|Can't load the configuration of '[^']{1,300}'",
        "path-missing",
        "the model or draft path holds no config on the host: correct it",
    ),
    known(
        r"Unsupported model_type \S{1,60} for (?:Eagle3|PEagle) speculator",
        "draft-config",
        "the draft's model_type is none that this vLLM translates: see cfg.architectures",
    ),
    known(
        r"must have `pard_token` or `ptd_token_id`",
        "draft-config",
        "parallel drafting is asked for, and the draft is not made for it: take parallel_drafting out",
    ),
    known(
        r"There is no module or parameter named '",
        "weight-names",
        "the checkpoint's tensor names do not fit the model class: see ckpt.names, and cfg.forward for keys not read",
    ),
    known(
        r"Model architectures .{0,300} are not supported for now|failed to be inspected|Cannot find model module\. '",
        "architecture-unknown",
        "this vLLM does not know the architecture: check the config's architectures, or use a newer version",
    ),
    *COMMON,
    known(
        r"EngineCore (?:failed to start|encountered a fatal error|hit an exception)|WorkerProc hit an exception",
        "exception",
        "a process of the engine failed: the traceback follows",
    ),
    known(
        r"Engine core initialization failed",
        "start-failed",
        "the server ends before it was up: the cause is in the lines above",
    ),
    known(
        r"engine core exited unexpectedly|EngineDeadError|WorkerProc initialization failed|died unexpectedly"
        r"|Engine core proc \S{1,80} died",
        "child-died",
        "a process of the server died: the cause is in the lines above",
    ),
)
