"""The launch flags: SGLang's names, the subset the embedded engine honours, and SGLang's way of resolving them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from console.demo.engine.errors import ArgumentError

MASK = "******"

_KNOWN_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO")


@dataclass(frozen=True, slots=True)
class ServerArgs:
    """Launch flags under SGLang's field names; `resolve` settles the ones left open."""

    model_path: str
    served_model_name: str | None = None
    trust_remote_code: bool = False
    dtype: str = "auto"
    device: str = "cpu"
    tp_size: int = 1
    context_length: int | None = None
    mem_fraction_static: float | None = None
    max_running_requests: int | None = None
    disable_radix_cache: bool = False
    disable_cuda_graph: bool = False
    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str | None = None
    skip_server_warmup: bool = False
    enable_return_hidden_states: bool = False
    enable_metrics: bool = False
    log_level: str = "info"
    decode_log_interval: int = 40
    speculative_algorithm: str | None = None
    speculative_draft_model_path: str | None = None
    speculative_num_steps: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_draft_tokens: int | None = None
    launch_command: str = ""

    def shown(self) -> dict[str, Any]:
        """The fields as the log and /server_info show them: the API key is masked."""
        fields = asdict(self)
        if self.api_key:
            fields["api_key"] = MASK
        return fields


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m console.demo.engine",
        description="The embedded engine (demo, sglang-compatible): serves one tiny Llama, with or without a draft.",
        epilog="Flags carry SGLang's names and meaning; one that is not listed is not supported.",
        allow_abbrev=False,
    )
    parser.add_argument("--model-path", "--model", required=True, help="folder of the target")
    parser.add_argument("--served-model-name")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="accepted; the engine runs no model code from a folder"
    )
    parser.add_argument(
        "--dtype", default="auto", choices=["auto", "float32", "bfloat16"], help="accepted; it computes in float64"
    )
    parser.add_argument("--device", default="cpu", choices=["cpu"])
    parser.add_argument("--tp-size", "--tensor-parallel-size", "--tp", type=int, default=1)
    parser.add_argument("--context-length", type=int)
    parser.add_argument("--mem-fraction-static", type=float, help="accepted; memory is given by the context length")
    parser.add_argument("--max-running-requests", type=int, help="accepted; requests run one at a time")
    parser.add_argument("--disable-radix-cache", action="store_true", help="accepted; prefixes are never cached")
    parser.add_argument("--disable-cuda-graph", action="store_true", help="accepted; there are no graphs")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--api-key")
    parser.add_argument("--skip-server-warmup", action="store_true")
    parser.add_argument("--enable-return-hidden-states", action="store_true")
    parser.add_argument("--enable-metrics", action="store_true")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    parser.add_argument("--decode-log-interval", type=int, default=40)
    parser.add_argument("--speculative-algorithm")
    parser.add_argument("--speculative-draft-model-path", "--speculative-draft-model")
    parser.add_argument("--speculative-num-steps", type=int)
    parser.add_argument("--speculative-eagle-topk", type=int)
    parser.add_argument("--speculative-num-draft-tokens", type=int)
    return parser


def parse(argv: Sequence[str], program: Sequence[str] = ()) -> ServerArgs:
    """Flags as given, not resolved; `program` is what stood before them on the command line, for `launch_command`.

    Exits with status 2, as argparse does, on an unknown flag or a value of the wrong type.
    """
    fields = vars(_parser().parse_args(argv))
    key = fields["api_key"]
    masks = {key: MASK, f"--api-key={key}": f"--api-key={MASK}"} if key else {}
    return ServerArgs(**fields, launch_command=shlex.join(masks.get(word, word) for word in [*program, *argv]))


def resolve(args: ServerArgs) -> tuple[ServerArgs, list[str]]:
    """Settled flags and the notices SGLang would log about them.

    Raises ArgumentError, with SGLang's wording where it has one, for values that the engine cannot honour.
    """
    notices: list[str] = []
    if args.tp_size != 1:
        raise ArgumentError(f"--tp-size {args.tp_size}: the demo engine runs on one rank; pass --tp-size 1")
    if args.decode_log_interval < 1:
        raise ArgumentError(f"--decode-log-interval {args.decode_log_interval}: it must be at least 1")
    if not 0 < args.port < 65536:
        raise ArgumentError(f"--port {args.port}: a port is a number from 1 to 65535")
    args = replace(args, max_running_requests=1, served_model_name=args.served_model_name or args.model_path)
    if args.speculative_algorithm is None:
        return args, notices
    args = _resolve_speculative(args, notices)
    notices.append("Overlap schedule is not implemented for speculative decoding on CPU.")
    return args, notices


def _resolve_speculative(args: ServerArgs, notices: list[str]) -> ServerArgs:
    algorithm = (args.speculative_algorithm or "").upper()
    steps, topk = args.speculative_num_steps, args.speculative_eagle_topk
    if algorithm not in _KNOWN_ALGORITHMS:
        raise ArgumentError(f"Unknown speculative algorithm name: {args.speculative_algorithm}")
    if algorithm != "EAGLE3":
        raise ArgumentError(f"--speculative-algorithm {algorithm}: the demo engine drafts with EAGLE3 only")
    if args.speculative_draft_model_path is None:
        raise ArgumentError("EAGLE3 needs a draft: pass --speculative-draft-model-path with the draft's folder")
    if steps is None or topk is None:
        raise ArgumentError(
            "pass --speculative-num-steps and --speculative-eagle-topk together: SGLang's own choice for Llama is a "
            "tree (steps 5, topk 4), and the demo engine drafts chains"
        )
    if steps < 0 or steps > 16:
        raise ArgumentError(f"--speculative-num-steps {steps}: the demo engine drafts 0 to 16 steps")
    if topk != 1:
        raise ArgumentError(
            f"speculative_eagle_topk {topk} is only supported by engines with tree attention; the demo engine drafts "
            "chains. Use --speculative-eagle-topk 1."
        )
    if args.speculative_num_draft_tokens != steps + 1:
        notices.append(
            "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
        )
    return replace(args, speculative_algorithm=algorithm, speculative_num_draft_tokens=steps + 1)
