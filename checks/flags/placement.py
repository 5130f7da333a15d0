"""Where and how the server runs: batches, memory, ranks, disaggregation, quantisation."""

from __future__ import annotations

from typing import Any

from checks.cfg.layouts import names_of
from checks.cfg.model import LATENT
from checks.draft import Draft
from checks.engines.events import Decode
from checks.engines.versions import span
from checks.errors import CheckError
from checks.finding import Finding, FlagsFix, Verdict
from checks.flags.case import EAGLES, EVERY, Case, flags_check
from checks.jsonfile import whole
from checks.log import read_tail
from checks.rules import releases
from checks.target import Target

DEFAULT_RUNNING = 48
"""--max-running-requests with speculation where it is not given, in every release."""
MEMORY = 0.9
QUANTIZES_DRAFT = span("0.5.7")
OWN_BACKEND = span("0.5.7")

# Backends that take one kind of attention only (srt/layers/attention/attention_registry.py).
_LATENT_ONLY = ("trtllm_mla", "tokenspeed_mla", "cutedsl_mla")
_DENSE_ONLY = ("trtllm_mha",)

_SPLIT = ("num_attention_heads", "num_key_value_heads", "intermediate_size")

# Families whose sliding window SGLang's EAGLE-3 handles from the first release that serves them.
_WINDOWED = ("gpt_oss",)


@flags_check("flags.graph_bs_vs_concurrency")
def graph_bs_vs_concurrency(case: Case) -> Finding | None:
    """CUDA graphs are captured for as many requests as really run.

    Above --cuda-graph-max-bs a batch runs without graphs, and speculation is then slower than none. The opposite: too
    large a number takes memory and stops the capture.

    WARN: --max-running-requests, or the requests seen in the log, above the largest captured batch. INFO: the implied
    limit of 48 is above it. PASS: it covers them, or no limit is given.

    What to do: raise --cuda-graph-max-bs to the requests you expect, or lower --max-running-requests.
    """
    launch = case.launch
    largest = launch.number("cuda-graph-max-bs") or max(launch.numbers("cuda-graph-bs"), default=None)
    given = launch.number("max-running-requests")
    seen = _running(case)
    facts = {"cuda_graph_max_bs": largest, "max_running_requests": given, "seen": seen}
    if largest is None or launch.has("disable-cuda-graph"):
        return case.say(Verdict.PASS, "the captured batches are the default, or there are none", facts)
    asked = max(given or 0, seen or 0)
    if asked > largest:
        what = f"{seen} requests ran at once" if (seen or 0) > (given or 0) else f"--max-running-requests is {given}"
        fix = FlagsFix(set={"cuda-graph-max-bs": asked}) if launch.number("cuda-graph-max-bs") else None
        said = f"{what} and graphs are captured up to {largest}: above it they run without"
        return case.rule(Verdict.WARN, said, EVERY, facts, fix)
    if given is None and case.algorithm in EAGLES and largest < DEFAULT_RUNNING:
        said = f"graphs are captured up to {largest}, and up to {DEFAULT_RUNNING} requests may run"
        return case.say(Verdict.INFO, said, facts)
    return case.say(Verdict.PASS, f"graphs up to {largest} cover {asked or 'the'} requests", facts)


def _running(case: Case) -> int | None:
    """The most requests that a decode line of the log shows, None without a log."""
    if not case.evidence.request.log:
        return None
    try:
        events = read_tail(case.evidence).events
    except CheckError:
        return None
    return max((item.running or 0 for item in events if isinstance(item, Decode)), default=None)


@flags_check("flags.mem_fraction")
def mem_fraction(case: Case) -> Finding | None:
    """--mem-fraction-static leaves room for the draft.

    The draft's weights, its own cache and its graphs come on top of what the fraction takes; above 0.9 little is left.

    WARN: above 0.9 with a draft. PASS: otherwise. No speed-up is promised either way: on some models verifying costs
    what the draft saves.

    What to do: lower it until capturing and long prompts run without running out of memory.
    """
    value = case.launch.decimal("mem-fraction-static")
    facts = {"mem_fraction_static": value}
    if value is None or case.algorithm not in EAGLES:
        return case.say(Verdict.PASS, "the default, or no draft", facts)
    if value > MEMORY:
        said = f"--mem-fraction-static {value:g} with a draft leaves little for its cache and graphs"
        return case.rule(Verdict.WARN, said, EVERY, facts)
    return case.say(Verdict.PASS, f"{value:g} leaves room", facts)


@flags_check("flags.nccl_hints")
def nccl_hints(case: Case) -> Finding | None:
    """What helps when the first all-reduce hangs. Advice only, and never a fault that a flag is absent.

    On boxes whose GPUs are joined by PCIe alone, some hang there: --disable-custom-all-reduce or NCCL_ALGO=Tree helped
    on A800, NCCL_P2P_DISABLE=1 on RTX PRO 6000. The line that custom all-reduce is not supported on more than two
    PCIe-only GPUs is a notice, not an error.

    INFO: several ranks. PASS: one.
    """
    ranks = (case.launch.number("tp-size") or 1) * (case.launch.number("pp-size") or 1)
    names = ("NCCL_P2P_DISABLE", "NCCL_ALGO", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE")
    facts = {"ranks": ranks, "env": {name: case.launch.env[name] for name in names if name in case.launch.env}}
    if ranks <= 1:
        return case.say(Verdict.PASS, "one rank: no all-reduce", facts)
    said = "where GPUs are joined by PCIe alone and the first all-reduce hangs: --disable-custom-all-reduce, "
    return case.say(Verdict.INFO, said + "NCCL_ALGO=Tree or NCCL_P2P_DISABLE=1", facts)


@flags_check("flags.target_swa")
def target_swa(case: Case) -> Finding | None:
    """A target with sliding-window attention can be served with EAGLE-3 by this release.

    For Gemma 2 and 3 and EXAONE 4 a start with EAGLE failed under both backends until spring 2026; gpt-oss, whose
    window is served from the beginning, is not concerned. A config that names a window and turns it off
    (`use_sliding_window: false`, no sliding layer) has none.

    WARN: an active window, EAGLE-3, and a release up to 0.5.11. INFO: the same later. PASS: no window.

    What to do: upgrade, and try the start before relying on it.
    """
    target = case.target
    if case.algorithm not in EAGLES or target is None:
        return case.say(Verdict.PASS, "no speculation of this family, or no target given")
    window = whole(target.text.get("sliding_window"))
    facts = {"sliding_window": target.text.get("sliding_window"), "model_type": target.model_type}
    if window is None or not _slides(target) or target.model_type in _WINDOWED:
        return case.say(Verdict.PASS, "the target has no active sliding window, or one that is served", facts)
    old = span("", "0.5.11")
    said = f"the target slides its attention over {window} tokens, and starting EAGLE failed for such targets"
    if case.serving.within(old) is False:
        return case.say(Verdict.INFO, f"{said} in {releases(old)}", facts)
    return case.rule(Verdict.WARN, said, old, facts)


def _slides(target: Target) -> bool:
    layers = target.text.get("layer_types")
    if isinstance(layers, list) and layers:
        return any(isinstance(item, str) and "sliding" in item for item in layers)
    return target.text.get("use_sliding_window") is not False


@flags_check("flags.pd_with_eagle3")
def pd_with_eagle3(case: Case) -> Finding | None:
    """Prefill and decode on different servers carry what the draft needs.

    The states of an EAGLE-3 draft are several times as wide as one. Reports up to November 2025 (before 0.5.6) show
    buffers of one width, made-up first proposals on the decode side, and failures for a draft narrower than its target.

    WARN: --disaggregation-mode with EAGLE3 in a release before 0.5.6; in any release when the draft's width is not the
    target's. INFO: otherwise. PASS: one server.

    What to do: 0.5.6 or later; compare the accept length with one server's.
    """
    mode = case.launch.text("disaggregation-mode")
    draft, target = case.draft, case.target
    own = whole(draft.flat.get("hidden_size")) if draft is not None else None
    theirs = target.hidden if target is not None else None
    facts = {"disaggregation_mode": mode or None, "draft_hidden": own, "target_hidden": theirs}
    if mode in ("", "null", "none") or case.algorithm not in EAGLES:
        return case.say(Verdict.PASS, "one server, or no draft", facts)
    if own is not None and theirs is not None and own != theirs:
        said = f"disaggregated {mode} with a draft {own} wide and a target {theirs}: buffers of one width broke on this"
        return case.rule(Verdict.WARN, said, EVERY, facts)
    early = span("", "0.5.5")
    said = f"disaggregated {mode} with EAGLE-3: the decode side was fed wrong or made-up states"
    if case.serving.within(early):
        return case.rule(Verdict.WARN, said, early, facts)
    return case.say(Verdict.INFO, f"{said} in {releases(early)}", facts)


@flags_check("flags.parallel")
def parallel(case: Case) -> Finding | None:
    """The way the target is split over GPUs works with EAGLE-3.

    With pipeline stages only the last one captures, so states of earlier stages never reach the draft: no release
    serves EAGLE-3 with --pp-size above 1, but for 0.5.21 and later behind SGLANG_ENABLE_PP_SPEC=1. Adaptive steps
    (0.5.11 and later) fall back to fixed ones under data-parallel attention, and with topk above 1. The draft is split
    over as many ranks as the target's attention, so its own heads and MLP have to divide by them, which a target of
    more heads does not show.

    FAIL: --pp-size above 1; heads, key heads or MLP of the draft that the ranks do not divide, where they divide the
    target's heads. INFO: the same, and the target's heads are not known to divide. WARN: stages behind that variable;
    adaptive steps that will not adapt. PASS: otherwise.

    What to do: tensor parallelism instead of stages; as many ranks as divide the draft; fixed steps.
    """
    launch, now = case.launch, case.effective
    stages = launch.number("pp-size") or 1
    facts: dict[str, Any] = {
        "pp": stages,
        "tp": launch.number("tp-size") or 1,
        "dp": launch.number("dp-size") or 1,
        "dp_attention": launch.has("enable-dp-attention"),
    }
    if case.algorithm not in EAGLES:
        return case.say(Verdict.PASS, "no speculation of this family", facts)
    if stages > 1:
        said = f"--pp-size {stages}: only the last stage captures states, those of earlier layers are missing"
        trial = span("0.5.21")
        if launch.switched_on("SGLANG_ENABLE_PP_SPEC") and case.serving.within(trial):
            return case.rule(Verdict.WARN, f"{said}, unless SGLANG_ENABLE_PP_SPEC=1 carries them", trial, facts)
        return case.rule(Verdict.FAIL, said, EVERY, facts)
    uneven = _uneven(case.draft, facts)
    if uneven:
        heads = whole(case.target.text.get("num_attention_heads")) if case.target is not None else None
        if heads is not None and heads % facts["draft_ranks"] == 0:
            said = f"{uneven}, though they divide the target's {heads}: the start stops with an AssertionError"
            return case.rule(Verdict.FAIL, said, EVERY, facts)
        return case.say(Verdict.INFO, f"{uneven}: the start stops, if the target's own do not stop it before", facts)
    if launch.has("speculative-adaptive") and (facts["dp_attention"] or (now is not None and now.topk > 1)):
        why = "data-parallel attention" if facts["dp_attention"] else f"topk {now.topk if now else ''}"
        fix = FlagsFix(unset=("speculative-adaptive",))
        return case.rule(Verdict.WARN, f"adaptive steps stay fixed under {why}", span("0.5.11"), facts, fix)
    return case.say(Verdict.PASS, f"tp {facts['tp']}, dp {facts['dp']}, one stage", facts)


def _uneven(draft: Draft | None, facts: dict[str, Any]) -> str:
    """What of the draft its ranks do not divide (srt/models/llama.py); empty when they do."""
    ranks = facts["tp"] // max(facts["dp"], 1) if facts["dp_attention"] else facts["tp"]
    facts["draft_ranks"] = ranks
    if draft is None or draft.is_speculators or ranks < 2:
        return ""
    heads, keys, mlp = (whole(draft.flat.get(key)) for key in _SPLIT)
    # Fewer key heads than ranks are copied, as long as that comes out even.
    few = keys is not None and max(keys, ranks) % min(keys, ranks) != 0
    latent = LATENT in names_of(draft.config)
    for count, wrong, what in (
        (heads, heads is not None and heads % ranks != 0, "attention heads"),
        (keys, few and not latent, "key heads"),
        (mlp, mlp is not None and mlp % ranks != 0 and not latent, "values in its MLP"),
    ):
        if wrong:
            return f"the draft has {count} {what}, which {ranks} ranks do not divide"
    return ""


@flags_check("flags.draft_quantization")
def draft_quantization(case: Case) -> Finding | None:
    """The target's quantisation is not taken over by a draft that has none.

    Without --speculative-draft-model-quantization the draft takes the value of --quantization, and plain bfloat16
    weights are then read as quantised ones. `unquant` keeps them as they are; the flag came with 0.5.7.

    WARN: --quantization, a draft without a quantization_config, and no flag of its own. INFO: the target's config is
    quantised and --quantization is not given, which the draft does not take over. PASS: otherwise.

    What to do: stage the fix.
    """
    launch, draft, target = case.launch, case.draft, case.target
    given = launch.text("quantization")
    own = launch.text("speculative-draft-model-quantization")
    of_target = _method(target.config) or _method(target.text) if target is not None else ""
    of_draft = _quantised(draft)
    facts = {"quantization": given or None, "draft_flag": own or None, "target": of_target or None, "draft": of_draft}
    if case.algorithm not in EAGLES or own or of_draft or draft is None:
        return case.say(Verdict.PASS, "no draft, or its quantisation is said", facts)
    if given in ("", "unquant"):
        if of_target:
            said = f"the target is {of_target} by its config and the draft is not: without --quantization it stays so"
            return case.say(Verdict.INFO, said, facts)
        return case.say(Verdict.PASS, "nothing is quantised", facts)
    said = f"--quantization {given} is taken over by the draft, whose weights are not quantised"
    if case.serving.within(QUANTIZES_DRAFT) is False:
        return case.rule(Verdict.WARN, f"{said}; only later ones can tell them apart", span("", "0.5.6"), facts)
    fix = FlagsFix(set={"speculative-draft-model-quantization": "unquant"})
    way = "--speculative-draft-model-quantization unquant (0.5.7 and later) keeps them"
    return case.rule(Verdict.WARN, f"{said}: {way}", EVERY, facts, fix)


@flags_check("flags.draft_backend")
def draft_backend(case: Case) -> Finding | None:
    """The draft can be served by the attention backend it inherits from the target.

    Without --speculative-draft-attention-backend (0.5.7 and later) the draft takes the target's. Some backends serve
    one kind of attention only: trtllm_mla, tokenspeed_mla and cutedsl_mla latent attention, trtllm_mha the other. A
    Llama draft of a target with latent attention (DeepSeek, Kimi) under one of these stops the start: `trtllm_mla
    backend can only be used with MLA models`.

    FAIL: such a backend, and a draft of the other kind. INFO: no backend is named, and target and draft are of
    different kinds: on Blackwell the server may choose one of these. PASS: otherwise.

    What to do: stage the fix, or name another backend for the draft; before 0.5.7 for both.
    """
    launch, draft, target = case.launch, case.draft, case.target
    named = [
        launch.text(name) for name in ("attention-backend", "prefill-attention-backend", "decode-attention-backend")
    ]
    own = launch.text("speculative-draft-attention-backend")
    latent = draft is not None and LATENT in names_of(draft.config)
    facts = {
        "attention_backend": [name for name in named if name],
        "draft_backend": own or None,
        "draft_latent": latent,
    }
    if case.algorithm not in EAGLES or draft is None or draft.is_speculators or not case.eagle3:
        return case.say(Verdict.PASS, "no EAGLE-3 draft is given", facts)
    wrong = next((name for name in ([own] if own else named) if name in (_DENSE_ONLY if latent else _LATENT_ONLY)), "")
    kind = "latent attention" if latent else "dense attention"
    if wrong:
        own_flag = case.serving.within(OWN_BACKEND) is not False
        # Both serve where trtllm_mla does; trtllm_mha, which the reports took, only without a tree.
        chain = case.effective is not None and case.effective.topk == 1
        other = "trtllm_mha" if chain and not latent else "flashinfer"
        fix = FlagsFix(set={"speculative-draft-attention-backend": other}) if own_flag else None
        how = "is given it" if own else "inherits it"
        said = f"{wrong} does not serve a draft of {kind}, which {how}: the start stops"
        return case.rule(Verdict.FAIL, said, EVERY, facts, fix)
    theirs = target is not None and whole(target.text.get("kv_lora_rank")) is not None
    if theirs and not latent and not own and not any(named):
        said = f"the draft is of {kind} and the target of latent: on Blackwell, where trtllm_mla is chosen for both, "
        return case.say(Verdict.INFO, f"{said}name --speculative-draft-attention-backend", facts)
    return case.say(Verdict.PASS, f"the draft's {kind} is served", facts)


def _quantised(draft: Draft | None) -> bool:
    return draft is not None and bool(_method(draft.config))


def _method(config: dict[str, Any]) -> str:
    held = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(held, dict):
        return ""
    return str(held.get("quant_method") or held.get("quant_algo") or "quantised")[:40]
