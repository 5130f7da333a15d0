"""The EAGLE-3 draft forward of the Llama flavour over several steps; one implementation for numpy and torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from checks.draft import Draft
from checks.errors import CheckError
from checks.jsonfile import whole
from checks.rotary import UnknownRope, frequencies, rotary_table

Array = Any
"""A numpy array or a torch tensor: the code below uses only what the two share."""

CHUNK = 128
"""Anchors at a time: attention scores are [heads, CHUNK, rows] float32."""

_LAYER = ("midlayer.", "layers.0.")
_IGNORED = ("t2d", "embed_tokens.weight", "mask_hidden")
_LEGACY = ("low", "mid", "high")


class CannotReplay(CheckError):
    """The draft is of a kind whose forward is not computed here; the message names the part."""


@dataclass(frozen=True)
class DraftShape:
    """Sizes and switches of a one-layer draft. H = `hidden`, Ht = `target_hidden`, m = `slots`."""

    hidden: int
    target_hidden: int
    slots: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    norm_before_residual: bool
    norm_output: bool
    rope: Mapping[str, Any]


class Drafter:
    """A draft ready to run. `weights` are float32 arrays of the module `xp` (numpy, or torch in its place).

    Names are those of the checkpoint without `model.`, and with the layer's tensors under `layer.`. Everything is
    computed in float32; a row is a token; matrices are [out, in] as in the checkpoint.
    """

    def __init__(self, shape: DraftShape, weights: Mapping[str, Array], xp: Any = np) -> None:
        self.shape = shape
        self._w = dict(weights)
        self._xp = xp
        offsets = weights.get("d2t")
        rows = int(self._w["lm_head.weight"].shape[0])
        ids = np.arange(rows, dtype=np.int64)
        self._token_of = ids if offsets is None else ids + np.asarray(offsets).astype(np.int64)

    @property
    def cost(self) -> int:
        """Floating-point operations of one step of one anchor, attention left out."""
        return 2 * sum(int(w.shape[0]) * int(w.shape[1]) for w in self._w.values() if len(w.shape) == 2)

    def fuse(self, aux: Array) -> Array:
        """h_0 [T, H] from the states side by side [T, m*Ht]: the optional norms, then `fc`."""
        xp, m, wide = self._xp, self.shape.slots, self.shape.target_hidden
        if "fc_norm.0.weight" in self._w:
            blocks = [aux[:, i * wide : (i + 1) * wide] for i in range(m)]
            aux = xp.concatenate([self._norm(block, f"fc_norm.{i}.weight") for i, block in enumerate(blocks)], axis=1)
        if "input_norm.weight" in self._w:
            aux = self._norm(aux, "input_norm.weight")
        return self._linear(aux, "fc")

    def predict(self, fused: Array, embedded: Array, steps: int, first: int, last: int) -> np.ndarray:
        """Tokens the draft proposes, teacher forced: [steps, last - first] int64, ids of the target's vocabulary.

        `fused` [T, H] is h_0 of rows 0 … T-1, `embedded` [E, H] the embeddings of the same text. The anchors are rows
        first … last-1: step j at anchor t reads the embedding of token t+1+j and proposes token t+2+j, so E must be
        at least last + steps. Rows before `first` are context for attention only.
        """
        out = np.zeros((steps, last - first), dtype=np.int64)
        for start, logits in self.unroll(fused, embedded, steps, first, last):
            for j, row in enumerate(logits):
                best = np.asarray(self._xp.argmax(row, axis=-1))
                out[j, start - first : start - first + len(best)] = self._token_of[best]
        return out

    def unroll(self, fused: Array, embedded: Array, steps: int, first: int, last: int) -> Any:
        """Yield (row of the first anchor, [logits [A, DV] per step]) for chunks of anchors, low to high.

        Keys of step 0 are visible causally; keys of a later step only to their own anchor, for they stand for the
        tokens this anchor drafted. Positions of step j are t + j.
        """
        if len(embedded) < last + steps:
            raise ValueError(f"{len(embedded)} embedded rows do not reach step {steps} of anchor {last - 1}")
        keys, values = self._context(fused[:last], embedded)
        for start in range(first, last, CHUNK):
            stop = min(start + CHUNK, last)
            yield start, self._draft(fused, embedded, steps, (start, stop), (keys[:, :, :stop], values[:, :stop]))

    # -- one layer ---------------------------------------------------------------------------------------------

    def _context(self, fused: Array, embedded: Array) -> tuple[Array, Array]:
        """Step-0 keys [kv, D, T] and values [kv, T, D] of every row."""
        xp, keys, values = self._xp, [], []
        for start in range(0, len(fused), CHUNK):
            stop = min(start + CHUNK, len(fused))
            z = self._read(embedded[start + 1 : stop + 1], fused[start:stop])
            key, value = self._key_value(z, np.arange(start, stop))
            keys.append(key)
            values.append(value)
        return (
            xp.moveaxis(xp.concatenate(keys, axis=0), 0, 2),
            xp.moveaxis(xp.concatenate(values, axis=0), 0, 1),
        )

    def _draft(
        self, fused: Array, embedded: Array, steps: int, rows: tuple[int, int], context: tuple[Array, Array]
    ) -> list[Array]:
        start, stop = rows
        hidden, logits, own = fused[start:stop], [], []
        for j in range(steps):
            z = self._read(embedded[start + 1 + j : stop + 1 + j], hidden)
            positions = np.arange(start, stop) + j
            if j > 0:
                key, value = self._key_value(z, positions)
                own.append((self._xp.moveaxis(key, 0, 1), self._xp.moveaxis(value, 0, 1)))
            attended = self._attend(self._query(z, positions), context, own, start)
            residual = self._norm(hidden, "layer.hidden_norm.weight") if self.shape.norm_before_residual else hidden
            residual = residual + self._linear(attended, "layer.self_attn.o_proj")
            out = residual + self._mlp(self._norm(residual, "layer.post_attention_layernorm.weight"))
            normed = self._norm(out, "norm.weight")
            logits.append(self._linear(normed, "lm_head"))
            hidden = normed if self.shape.norm_output else out
        return logits

    def _read(self, embedded: Array, hidden: Array) -> Array:
        """What attention reads, [A, 2H]: the token's embedding first, then the hidden state, each normed."""
        return self._xp.concatenate(
            [self._norm(embedded, "layer.input_layernorm.weight"), self._norm(hidden, "layer.hidden_norm.weight")],
            axis=1,
        )

    def _query(self, z: Array, positions: np.ndarray) -> Array:
        """[kv, group, A, D], scaled."""
        shape, xp = self.shape, self._xp
        query = self._linear(z, "layer.self_attn.q_proj").reshape(len(z), shape.heads, shape.head_dim)
        query = self._turn(query, positions) * shape.head_dim**-0.5
        grouped = query.reshape(len(z), shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim)
        return xp.moveaxis(grouped, 0, 2)

    def _key_value(self, z: Array, positions: np.ndarray) -> tuple[Array, Array]:
        """Each [A, kv, D]."""
        size = (len(z), self.shape.kv_heads, self.shape.head_dim)
        key = self._turn(self._linear(z, "layer.self_attn.k_proj").reshape(size), positions)
        return key, self._linear(z, "layer.self_attn.v_proj").reshape(size)

    def _attend(self, query: Array, context: tuple[Array, Array], own: list[tuple[Array, Array]], start: int) -> Array:
        """[A, heads*D]: one softmax over the causal step-0 keys and this anchor's own later keys."""
        xp = self._xp
        keys, values = context
        kv, group, rows, dim = query.shape
        seen = keys.shape[2]
        scores = (query.reshape(kv, group * rows, dim) @ keys).reshape(kv, group, rows, seen)
        hidden = xp.asarray(np.arange(seen)[None, :] > np.arange(start, start + rows)[:, None])
        scores = xp.where(hidden, xp.asarray(np.float32(-np.inf)), scores)
        mine = [(query * key[:, None]).sum(-1)[..., None] for key, _ in own]
        scores = xp.concatenate([scores, *mine], axis=-1)
        scores = xp.exp(scores - xp.amax(scores, axis=-1, keepdims=True))
        share = scores / scores.sum(-1)[..., None]
        mixed = share[..., :seen].reshape(kv, group * rows, seen) @ values
        mixed = mixed.reshape(kv, group, rows, dim)
        for i, (_, value) in enumerate(own):
            mixed = mixed + share[..., seen + i, None] * value[:, None]
        return xp.moveaxis(mixed, 2, 0).reshape(rows, kv * group * dim)

    def _mlp(self, x: Array) -> Array:
        gate = self._linear(x, "layer.mlp.gate_proj")
        gate = gate / (1.0 + self._xp.exp(-gate))
        return self._linear(gate * self._linear(x, "layer.mlp.up_proj"), "layer.mlp.down_proj")

    def _turn(self, x: Array, positions: np.ndarray) -> Array:
        half = self.shape.head_dim // 2
        cos, sin = (
            self._xp.asarray(table)[:, None] for table in rotary_table(positions, self.shape.head_dim, self.shape.rope)
        )
        swapped = self._xp.concatenate([-x[..., half:], x[..., :half]], axis=-1)
        return x * cos + swapped * sin

    def _norm(self, x: Array, name: str) -> Array:
        square = (x * x).sum(-1)[..., None] / x.shape[-1]
        return x / self._xp.sqrt(square + self.shape.eps) * self._w[name]

    def _linear(self, x: Array, name: str) -> Array:
        out = x @ self._w[f"{name}.weight"].T
        bias = self._w.get(f"{name}.bias")
        return out if bias is None else out + bias


def load_drafter(draft: Draft) -> Drafter:
    """The draft's weights in float32, ready to run in numpy. Raises CannotReplay naming what is not computed here.

    Memory is that of the weights without the embedding, 4 bytes each.
    """
    weights = draft.weights
    if weights is None:
        raise CannotReplay("the draft has no weights beside its config")
    names = {name.replace("model.", "", 1) if name.startswith("model.") else name: name for name in weights.info}
    wanted = {common: stored for stored in names if (common := _common_name(stored))}
    shape = draft_shape(draft.config, {common: weights.info[names[stored]].shape for common, stored in wanted.items()})
    return Drafter(shape, {common: weights.read(names[stored]) for common, stored in wanted.items()})


def draft_shape(config: Mapping[str, Any], sizes: Mapping[str, tuple[int, ...]]) -> DraftShape:
    """Sizes and switches from the config and the tensors' shapes (by common name). Raises CannotReplay."""
    inner = config.get("transformer_layer_config")
    layer: Mapping[str, Any] = inner if isinstance(inner, Mapping) else config
    eagle = config.get("eagle_config")
    nested: Mapping[str, Any] = eagle if isinstance(eagle, Mapping) else {}
    _only_known(layer, sizes)
    hidden, width = sizes["fc.weight"]
    heads = _count(layer, "num_attention_heads", 0)
    head_dim = _count(layer, "head_dim", hidden // heads)
    target_hidden = _count(config, "target_hidden_size", hidden)
    if width % target_hidden:
        raise CannotReplay(f"fc reads {width} values, which is no whole number of states of {target_hidden}")
    kv_heads = _count(layer, "num_key_value_heads", heads)
    shape = DraftShape(
        hidden=hidden,
        target_hidden=target_hidden,
        slots=width // target_hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=_epsilon(layer),
        norm_before_residual=bool(config.get("norm_before_residual", nested.get("norm_before_residual", False))),
        norm_output=bool(config.get("norm_output", nested.get("norm_output", False))),
        rope=layer,
    )
    _fits(shape, sizes)
    try:
        frequencies(head_dim, layer)
    except (UnknownRope, KeyError) as error:
        raise CannotReplay(f"cannot replay this draft: {error}") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise CannotReplay(
            f"cannot replay this draft: its rope settings are not the numbers they should be: {error!s:.100}"
        ) from error
    return shape


def _count(config: Mapping[str, Any], key: str, default: int) -> int:
    """A count of the config, `default` where it is absent, null or 0. Raises CannotReplay for what is none."""
    found = whole(config.get(key) or default)
    if found is None:
        raise CannotReplay(f"cannot replay this draft: {key} is {config.get(key)!r:.60}, not a count")
    return found


def _epsilon(layer: Mapping[str, Any]) -> float:
    value = layer.get("rms_norm_eps", 1e-6)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CannotReplay(f"cannot replay this draft: rms_norm_eps is {value!r:.60}, not a number")
    return float(value)


_REQUIRED = (
    "fc.weight",
    "norm.weight",
    "lm_head.weight",
    *(
        f"layer.{part}.weight"
        for part in (
            "input_layernorm",
            "hidden_norm",
            "post_attention_layernorm",
            *(f"self_attn.{which}_proj" for which in "qkvo"),
            *(f"mlp.{which}_proj" for which in ("gate", "up", "down")),
        )
    ),
)
_OPTIONAL = (
    "d2t",
    "input_norm.weight",
    *(f"layer.self_attn.{which}_proj.bias" for which in "qkvo"),
    *(f"layer.mlp.{which}_proj.bias" for which in ("gate", "up", "down")),
)


def _common_name(stored: str) -> str:
    """The name used here for a tensor of the checkpoint, or "" for one the forward does not read."""
    if stored in _IGNORED or stored.endswith("inv_freq"):
        return ""
    for prefix in _LAYER:
        if stored.startswith(prefix):
            return "layer." + stored[len(prefix) :]
    for i, word in enumerate(_LEGACY):
        if stored == f"aux_norm_{word}.weight":
            return f"fc_norm.{i}.weight"
    return "d2t" if stored == "draft_id_to_target_id" else stored


def _only_known(layer: Mapping[str, Any], sizes: Mapping[str, tuple[int, ...]]) -> None:
    if any("kv_a_proj" in name for name in sizes):
        raise CannotReplay("cannot replay this draft: its attention is latent (MLA), which is not computed here")
    if _count(layer, "num_hidden_layers", 1) != 1:
        raise CannotReplay(f"cannot replay this draft: it has {layer['num_hidden_layers']} layers, not one")
    if str(layer.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise CannotReplay(f"cannot replay this draft: activation {layer['hidden_act']!r} is not computed here")
    absent = [name for name in _REQUIRED if name not in sizes]
    if absent:
        raise CannotReplay(f"cannot replay this draft: it has no {absent[0].replace('layer.', 'midlayer.')}")
    for name in _REQUIRED:
        if len(sizes[name]) != (1 if "norm" in name else 2):
            raise CannotReplay(
                f"cannot replay this draft: {name} is {list(sizes[name][:8])}, no vector or matrix it could be"
            )
    extra = [name for name in sizes if name not in _REQUIRED + _OPTIONAL and not name.startswith("fc_norm.")]
    if extra:
        raise CannotReplay(f"cannot replay this draft: {extra[0]} is no part of the Llama flavour")
    if "num_attention_heads" not in layer:
        raise CannotReplay("cannot replay this draft: its config has no num_attention_heads")


def _fits(shape: DraftShape, sizes: Mapping[str, tuple[int, ...]]) -> None:
    """The shapes of what is multiplied. Raises CannotReplay naming the first tensor that does not fit."""
    inner = sizes["layer.mlp.gate_proj.weight"][0]
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    vector, both = (shape.hidden,), 2 * shape.hidden
    wanted: dict[str, tuple[int, ...]] = {
        "layer.input_layernorm.weight": vector,
        "layer.hidden_norm.weight": vector,
        "layer.post_attention_layernorm.weight": vector,
        "norm.weight": vector,
        "lm_head.weight": (sizes["lm_head.weight"][0], shape.hidden),
        "layer.self_attn.q_proj.weight": (query, both),
        "layer.self_attn.k_proj.weight": (key, both),
        "layer.self_attn.v_proj.weight": (key, both),
        "layer.self_attn.o_proj.weight": (shape.hidden, query),
        "layer.mlp.gate_proj.weight": (inner, shape.hidden),
        "layer.mlp.up_proj.weight": (inner, shape.hidden),
        "layer.mlp.down_proj.weight": (shape.hidden, inner),
        "d2t": (sizes["lm_head.weight"][0],),
        "input_norm.weight": (shape.slots * shape.target_hidden,),
    }
    if "fc_norm.0.weight" in sizes:
        wanted.update({f"fc_norm.{i}.weight": (shape.target_hidden,) for i in range(shape.slots)})
    for name, size in wanted.items():
        if name in sizes or name.startswith("fc_norm."):
            found = tuple(sizes.get(name, ()))
            if found != size:
                raise CannotReplay(f"cannot replay this draft: {name} is {list(found)}, its config asks {list(size)}")
    if shape.heads % shape.kv_heads:
        raise CannotReplay(f"cannot replay this draft: {shape.heads} heads over {shape.kv_heads} key/value heads")
