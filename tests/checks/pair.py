"""The shipped tiny pair for tests: its states by a forward of their own, and caches and captures made of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from checks.caches import Cache
from checks.capture import Capture, Taken, write_capture
from checks.engines import Engine
from checks.engines.sglang.layers import table_rule
from checks.evidence import Evidence
from checks.finding import Finding
from checks.request import CacheRequest, Request, ServerRequest
from checks.weights import open_weights
from tests.checks.files import bf16, write_tensors

DEMO = Path(__file__).resolve().parents[2] / "console" / "demo"
TARGET, DRAFT, CACHE = DEMO / "models" / "target", DEMO / "models" / "draft", DEMO / "cache"
STATES, N, H = (3, 7, 10), 12, 128
IDS = [2, 6, 9]


class TinyTarget:
    """A Llama forward in plain numpy, written for clarity: every R_k of a text, float32."""

    def __init__(self, folder: Path = TARGET) -> None:
        self.config = json.loads((folder / "config.json").read_text("utf-8"))
        weights = open_weights(folder)
        assert weights is not None
        self.weights = {name: weights.read(name) for name in weights.info}

    def states(self, ids: np.ndarray) -> np.ndarray:
        """R_0 … R_n of tokens [S]: [n+1, S, H]."""
        config, x = self.config, self.weights["model.embed_tokens.weight"][ids]
        out = [x]
        for layer in range(config["num_hidden_layers"]):
            x = self._layer(x, f"model.layers.{layer}.")
            out.append(x)
        return np.stack(out)

    def without_half_of_the_mlp(self, ids: np.ndarray) -> np.ndarray:
        """R_0 … R_n, each without half of its own layer's MLP: what one of two ranks holds before their sum."""
        whole, out = self.states(ids), [self.weights["model.embed_tokens.weight"][ids]]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}.mlp.down_proj.weight"
            down = self.weights[name]
            self.weights[name] = np.concatenate([down[:, : down.shape[1] // 2], 0 * down[:, down.shape[1] // 2 :]], 1)
            out.append(self._layer(whole[layer], f"model.layers.{layer}."))
            self.weights[name] = down
        return np.stack(out)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        scale = np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        return (x / scale * self.weights[name]).astype(np.float32)

    def final(self, x: np.ndarray) -> np.ndarray:
        """N of rows of R_n."""
        return self.norm(x, "model.norm.weight")

    def greedy(self, x: np.ndarray) -> np.ndarray:
        """The next tokens after rows of R_n."""
        return (self.final(x) @ self.weights["lm_head.weight"].T).argmax(-1)

    def _layer(self, x: np.ndarray, prefix: str) -> np.ndarray:
        w, config, length = self.weights, self.config, len(x)
        heads, kv, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        y = self.norm(x, prefix + "input_layernorm.weight")
        q, k, v = (
            (y @ w[f"{prefix}self_attn.{name}_proj.weight"].T).reshape(length, count, dim)
            for name, count in (("q", heads), ("k", kv), ("v", kv))
        )
        q, k = self._turn(q), self._turn(k)
        mixed = np.zeros((length, heads, dim), dtype=np.float32)
        for head in range(heads):
            scores = q[:, head] @ k[:, head * kv // heads].T / np.sqrt(dim)
            scores[np.triu_indices(length, 1)] = -np.inf
            share = np.exp(scores - scores.max(-1, keepdims=True))
            mixed[:, head] = share / share.sum(-1, keepdims=True) @ v[:, head * kv // heads]
        x = x + mixed.reshape(length, -1) @ w[prefix + "self_attn.o_proj.weight"].T
        y = self.norm(x, prefix + "post_attention_layernorm.weight")
        gate, up = (y @ w[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return (x + (gate / (1 + np.exp(-gate)) * up) @ w[prefix + "mlp.down_proj.weight"].T).astype(np.float32)

    def _turn(self, x: np.ndarray) -> np.ndarray:
        half = x.shape[-1] // 2
        angle = np.outer(np.arange(len(x)), self.config["rope_theta"] ** (-np.arange(half) / half))[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate(
            [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1
        ).astype(np.float32)


@lru_cache(maxsize=1)
def target() -> TinyTarget:
    return TinyTarget()


@lru_cache(maxsize=32)
def text(index: int) -> np.ndarray:
    """Token ids of the shipped cache's text `index`, as the file gives them."""
    weights = open_weights(CACHE / f"hs_{index}.safetensors")
    assert weights is not None
    return np.asarray(weights.read("token_ids"))


@lru_cache(maxsize=32)
def all_states(index: int) -> np.ndarray:
    """R_0 … R_n of text `index`, [n+1, S, H]."""
    return target().states(text(index))


def stacked(index: int, ks: tuple[int, ...]) -> np.ndarray:
    """States of a text as slots, [S, m, H]."""
    return np.stack([all_states(index)[k] for k in ks], axis=1)


def write_sample(path: Path, ids: np.ndarray, states: np.ndarray, **more: np.ndarray) -> None:
    """One file in the layout of speculators 0.5 and newer: `states` [S, m(+1), H] as bfloat16, rounded to nearest."""
    write_tensors(path, {"hidden_states": bf16(states), "token_ids": ids, **more})


def write_cache(
    folder: Path, ks: tuple[int, ...], texts: tuple[int, ...] = (0, 1, 2, 3), final: str = "pre", name: str = "hs_{}"
) -> Path:
    """A cache that holds R_k for `ks` and the final state, before ("pre") or after ("post") the norm."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in texts:
        last = all_states(index)[N]
        block = target().final(last) if final == "post" else last
        write_sample(
            folder / f"{name.format(index)}.safetensors",
            text(index),
            np.concatenate([stacked(index, ks), block[:, None]], axis=1),
        )
    return folder


def capture(
    folder: Path,
    ks: tuple[int, ...] = (),
    texts: tuple[int, ...] = (0, 1, 2, 3),
    skip: int = 0,
    ids: list[int] | None = None,
) -> Capture:
    """What an engine fed (R_k for `ks`) or, without `ks`, all states; the first `skip` rows were in its cache."""
    chosen = ks or tuple(range(N + 1))
    kind = "engine" if ks else "all-states"
    taken = [Taken(text(i), np.arange(skip, len(text(i))), stacked(i, chosen)[skip:]) for i in texts]
    return write_capture(folder, {"kind": kind, "engine": "sglang", "ids": ids, "states": list(chosen)}, taken)


def engine(version: str = "0.5.21", source: str = "given") -> Engine:
    """SGLang serving the tiny target, by the table."""
    rule, note = table_rule(version, "LlamaForCausalLM")
    pointer = "/eagle_config/eagle_aux_hidden_state_layer_ids"
    return Engine("sglang", version, source, rule, note=note, reads=(pointer,), pointer=pointer)


def draft_folder(folder: Path, ids: object) -> Path:
    """A config of a draft with these ids, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    eagle = {} if ids is None else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
    config = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": H, "num_hidden_layers": 1, **eagle}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


@dataclass
class Case:
    """One body of evidence, put together from pieces; `run` gives the findings of a check."""

    draft: Path | None = None
    cache: Path | None = None
    target: Path | None = TARGET
    engines: tuple[Engine, ...] = ()
    captures: tuple[Capture, ...] = ()
    claims: tuple[int, ...] = ()
    args: tuple[str, ...] = ()
    samples: int = 16
    snapshot: object = None
    pid: int = 0
    log: str = ""
    told: list[tuple[str, int, int, str]] = field(default_factory=list)
    opened: Cache | None = None
    """Taken in place of what stands at `cache`."""

    def evidence(self) -> Evidence:
        request = Request(
            draft=str(self.draft or ""),
            target=str(self.target or ""),
            caches=(CacheRequest(str(self.cache), states=self.claims),) if self.cache else (),
            args=self.args,
            samples=self.samples,
            snapshot=self.snapshot,
            server=ServerRequest(pid=self.pid),
            log=self.log,
        )
        evidence = Evidence(request, lambda *step: self.told.append(step))
        evidence.memo("captures", lambda: self.captures)
        evidence.memo("engines", lambda: self.engines)
        if self.opened is not None:
            evidence.memo(("cache", 0), lambda: self.opened)
        return evidence

    def run(self, check_id: str) -> list[Finding]:
        """The findings of one check, through the catalog; an `internal` finding is a bug and fails the test."""
        from checks.catalog import all_checks, run_checks

        chosen = [item for item in all_checks() if item.id == check_id]
        assert chosen, check_id
        findings = list(run_checks(self.evidence(), chosen))
        assert all(finding.check == check_id for finding in findings), findings
        return findings

    def only(self, check_id: str) -> Finding:
        """The one finding of a check."""
        findings = self.run(check_id)
        assert len(findings) == 1, findings
        return findings[0]
