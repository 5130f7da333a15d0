"""SGLang's failures by the text they print: class, whether the process dies of it, and what to do."""

from __future__ import annotations

from checks.engines.failures import COMMON, WIDTH, Failures, known

# The first that fits counts: what says the cause stands before what only says that something died.
FAILURES = Failures(
    *WIDTH,
    known(
        r"captured \d+ of \d+ aux hidden states|The model captured \d+ aux hidden states",
        "aux-width",
        "some configured ids name states that the target never captures: check the layer ids (console check)",
    ),
    known(
        r'can only concatenate str \(not "int"\) to str',
        "aux-ids-type",
        "the layer ids in the draft's config are text: write them as numbers",
    ),
    known(
        # A traceback through the method is another fault's.
        r"does not implement set_eagle3_layers_to_capture|no attribute '?set_eagle3_layers_to_capture"
        r"|no attribute 'capture_aux_hidden_states'",
        "target-unsupported",
        "this SGLang cannot capture states of this target: use a version that supports it",
    ),
    known(
        r"EAGLE3 currently only supports 1 layer",
        "draft-unsupported",
        "the draft has several layers: SGLang before 0.5.12 serves one only",
    ),
    known(
        r"object has no attribute '(?:set_embed|hot_token_id)'",
        "draft-unsupported",
        "the draft is an ordinary model: see flags.algo_vs_arch for its path and cfg.architectures for its class",
    ),
    known(
        r"only compatible with NGRAM speculative|not compatible with overlap schedule, speculative"
        r"|speculative decoding (?:only supports|does not support) |only supports topk = 1 for speculative",
        "launch-flags",
        "this version refuses one of the flags beside speculation: see flags.refused and flags.parallel",
    ),
    known(
        r"object has no attribute 'draft_vocab_size'",
        "draft-config",
        "the draft's config lacks draft_vocab_size: add it (null shares the target's head)",
    ),
    known(r"Port is already in use", "port-taken", "another process owns an internal port: stop it or choose another"),
    known(
        r"Not enough memory\. Please try to increase|leave no GPU memory for the KV cache",
        "out-of-memory",
        "the weights leave no room for the cache: raise --mem-fraction-static, or free the GPU",
    ),
    known(
        r"CUDA out of memory|OutOfMemoryError|out of memory\. Try to lower",
        "out-of-memory",
        "lower --mem-fraction-static or --max-running-requests, or free the GPU",
    ),
    known(
        r"KV cache pool is full\. Retract requests",
        "kv-full",
        "requests are put back for want of cache: lower the load or --max-running-requests",
        fatal=False,
    ),
    known(
        r"greater than the derived context_length",
        "context-length",
        "draft and target differ in context length: set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
    ),
    known(
        r"Model architectures .{0,300} (?:are not supported for now|failed to be inspected)",
        "architecture-unknown",
        "this SGLang does not know the architecture: check the config's architectures, or use a newer version",
    ),
    known(
        r"Unknown speculative algorithm name",
        "launch-flags",
        "the speculative algorithm is not known to this version: EAGLE3 is the one for these drafts",
    ),
    known(
        r"Cannot find the config file for \w+",
        "draft-quantization",
        "the draft inherits the target's quantization: give --speculative-draft-model-quantization unquant",
    ),
    known(
        r"trtllm_mla backend can only be used with MLA",
        "draft-backend",
        "the draft inherits the target's attention backend: give --speculative-draft-attention-backend",
    ),
    *COMMON,
    known(
        r"Capture .{0,60}graph failed",
        "graph-capture",
        "graph capture failed: the line above says why; --disable-cuda-graph gets past it",
    ),
    known(r"memory leak detected", "memory-leak", "the cache's books do not add up: report it to the engine's project"),
    known(
        r"[Ww]atchdog timeout",
        "watchdog",
        "a step took longer than the watchdog allows: look at the last batch, or raise --watchdog-timeout",
    ),
    known(
        r"Health check failed\. Server couldn't get a response",
        "unhealthy",
        "the scheduler does not answer: it hangs or is overloaded",
        fatal=False,
    ),
    known(
        r"Initialization failed\.",
        "start-failed",
        "the server ends before it was up: the cause is in the lines above",
    ),
    known(
        r"(?:Scheduler|DetokenizerManager|TokenizerManager|DataParallelController) hit an exception",
        "exception",
        "a process of the server failed: the traceback follows",
    ),
    known(
        r"Received sigquit from a child process|SIGQUIT received|Subprocess \S{1,80} \(pid=\d+\) crashed"
        r"|scheduler died during initialization|Sleeping 5 seconds before crash diagnostics",
        "child-died",
        "a process of the server died: the cause is in the lines above",
    ),
)
