"""Rotary position tables of a draft, from its config: plain, linear, llama3 and yarn; plain and yarn for MLA."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from checks.errors import CheckError

PLAIN = ("default", "mrope", "none")
"""Text has the same position on every axis of a multimodal rope, which makes it a plain one."""

KNOWN = (*PLAIN, "linear", "llama3", "yarn")

_DISPUTED = ("attention_factor", "attn_factor", "extrapolation_factor", "apply_yarn_scaling", "apply_scale", "truncate")
"""Settings of yarn that SGLang, vLLM and the trainers of latent drafts do not read alike."""


class UnknownRope(CheckError):
    """A rotary embedding that is not one of the four computed here."""


def rope_settings(config: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
    """(theta, scaling) of a config, old style (`rope_theta`, `rope_scaling`) or new (`rope_parameters`).

    Raises UnknownRope where the scaling is no object, or holds one for each kind of layer.
    """
    new = config.get("rope_parameters")
    scaling = new if isinstance(new, Mapping) else (config.get("rope_scaling") or {})
    if not isinstance(scaling, Mapping):
        raise UnknownRope(f"rope_scaling is {scaling!r:.60}, not an object")
    if any(isinstance(value, Mapping) for value in scaling.values()):
        raise UnknownRope("a rope of its own for each kind of layer is not computed here")
    theta = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
    theta = float(theta)
    if not 0 < theta < math.inf:
        raise UnknownRope(f"rope_theta is {theta}, which turns nothing")
    return theta, scaling


def frequencies(head_dim: int, config: Mapping[str, Any]) -> tuple[np.ndarray, float]:
    """Inverse frequencies [head_dim / 2] (radians per position) and the factor on cos and sin.

    The formulas are those of transformers' `modeling_rope_utils`. Raises UnknownRope for any other kind.
    """
    theta, scaling = rope_settings(config)
    kind = kind_of(scaling)
    if head_dim % 2:
        raise UnknownRope(f"{head_dim} dimensions of a head cannot be turned in pairs")
    if kind not in KNOWN:
        raise UnknownRope(f"rope scaling {kind!r} is not computed here (known: {', '.join(KNOWN)})")
    if float(scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) or 1.0) != 1.0:
        raise UnknownRope("a partial rotary embedding is not computed here")
    inverse = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if kind in PLAIN:
        return inverse, 1.0
    factor = float(scaling["factor"])
    if kind == "linear":
        return inverse / factor, 1.0
    original = float(scaling.get("original_max_position_embeddings", config.get("max_position_embeddings", 2048)))
    if kind == "llama3":
        return _llama3(inverse, factor, scaling, original), 1.0
    return _yarn(inverse, factor, scaling, original, theta, head_dim)


def rotary_table(positions: np.ndarray, head_dim: int, config: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """(cos, sin), each [S, head_dim] float32, for positions [S]; rotate-half layout."""
    return _table(positions, *frequencies(head_dim, config))


def latent_frequencies(rope_dim: int, config: Mapping[str, Any]) -> tuple[np.ndarray, float]:
    """The same for the turned dimensions of latent attention (MLA), where yarn's magnitudes are DeepSeek's.

    cos and sin take the magnitude of mscale (1 where absent) over that of mscale_all_dim (0 where absent), as in
    DeepSeek's code, SGLang, vLLM and TorchSpec; transformers agrees where both or neither are given. Raises
    UnknownRope for other scaling, which SGLang would take for yarn whatever its name.
    """
    scaling = rope_settings(config)[1]
    if kind_of(scaling) not in (*PLAIN, "yarn"):
        raise UnknownRope(f"rope scaling {kind_of(scaling)!r:.60} under latent attention is not computed here")
    inverse, factor = frequencies(rope_dim, config)
    if kind_of(scaling) != "yarn":
        return inverse, factor
    given = [key for key in _DISPUTED if scaling.get(key) is not None]
    if given:
        raise UnknownRope(f"{given[0]} of yarn under latent attention is not computed here: engines differ on it")
    part = scaling.get("mscale")
    return inverse, _magnitude(scaling, 1.0 if part is None else float(part)) / latent_magnitude(config)


def latent_magnitude(config: Mapping[str, Any]) -> float:
    """What yarn multiplies queries and keys of latent attention by, all dimensions alike: that of `mscale_all_dim`."""
    scaling = rope_settings(config)[1]
    return _magnitude(scaling, float(scaling.get("mscale_all_dim") or 0.0)) if kind_of(scaling) == "yarn" else 1.0


def latent_table(positions: np.ndarray, rope_dim: int, config: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """(cos, sin), each [S, rope_dim] float32, for positions [S] of latent attention; rotate-half layout."""
    return _table(positions, *latent_frequencies(rope_dim, config))


def kind_of(scaling: Mapping[str, Any]) -> str:
    """The kind of scaling under either of its names; `default` without one."""
    return str(scaling.get("rope_type", scaling.get("type", "default")) or "default")


def _magnitude(scaling: Mapping[str, Any], weight: float) -> float:
    """0.1 weight ln(factor) + 1 of yarn (Peng et al., arXiv 2309.00071, equation 22)."""
    factor = float(scaling["factor"])
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _table(positions: np.ndarray, inverse: np.ndarray, factor: float) -> tuple[np.ndarray, np.ndarray]:
    angle = np.outer(np.asarray(positions, dtype=np.float64), inverse)
    angle = np.concatenate([angle, angle], axis=1)
    return (np.cos(angle) * factor).astype(np.float32), (np.sin(angle) * factor).astype(np.float32)


def _llama3(inverse: np.ndarray, factor: float, scaling: Mapping[str, Any], original: float) -> np.ndarray:
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelength = 2 * math.pi / inverse
    blend = (original / wavelength - low) / (high - low)
    between = (1 - blend) * inverse / factor + blend * inverse
    scaled = np.where(wavelength > original / low, inverse / factor, inverse)
    middle = (wavelength <= original / low) & (wavelength >= original / high)
    return np.where(middle, between, scaled)


def _yarn(
    inverse: np.ndarray, factor: float, scaling: Mapping[str, Any], original: float, theta: float, head_dim: int
) -> tuple[np.ndarray, float]:
    def turns_at(rotations: float) -> float:
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(turns_at(float(scaling.get("beta_fast") or 32)), 0.0)
    high = min(turns_at(float(scaling.get("beta_slow") or 1)), head_dim - 1.0)
    if scaling.get("truncate", True):
        low, high = float(math.floor(low)), float(math.ceil(high))
    ramp = np.clip((np.arange(head_dim // 2) - low) / (high - low or 0.001), 0, 1)
    blended = inverse / factor * ramp + inverse * (1 - ramp)
    given = scaling.get("attention_factor")
    if given is not None:
        return blended, float(given)
    part, whole = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if part and whole:
        return blended, _magnitude(scaling, float(part)) / _magnitude(scaling, float(whole))
    return blended, _magnitude(scaling, 1.0)
