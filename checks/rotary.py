"""Rotary position tables of a Llama-flavoured draft, from its config: plain, linear, llama3 and yarn scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from checks.errors import CheckError

PLAIN = ("default", "mrope", "none")
"""Text has the same position on every axis of a multimodal rope, which makes it a plain one."""

KNOWN = (*PLAIN, "linear", "llama3", "yarn")


class UnknownRope(CheckError):
    """A rotary embedding that is not one of the four computed here."""


def rope_settings(config: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
    """(theta, scaling) of a config, old style (`rope_theta`, `rope_scaling`) or new (`rope_parameters`).

    Raises UnknownRope where the scaling is no object.
    """
    new = config.get("rope_parameters")
    scaling = new if isinstance(new, Mapping) else (config.get("rope_scaling") or {})
    if not isinstance(scaling, Mapping):
        raise UnknownRope(f"rope_scaling is {scaling!r:.60}, not an object")
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
    kind = str(scaling.get("rope_type", scaling.get("type", "default")) or "default")
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
    inverse, factor = frequencies(head_dim, config)
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

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    low = max(turns_at(float(scaling.get("beta_fast") or 32)), 0.0)
    high = min(turns_at(float(scaling.get("beta_slow") or 1)), head_dim - 1.0)
    if scaling.get("truncate", True):
        low, high = float(math.floor(low)), float(math.ceil(high))
    ramp = np.clip((np.arange(head_dim // 2) - low) / max(high - low, 0.001), 0, 1)
    blended = inverse / factor * ramp + inverse * (1 - ramp)
    given = scaling.get("attention_factor")
    if given is not None:
        return blended, float(given)
    part, whole = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if part and whole:
        return blended, magnitude(float(part)) / magnitude(float(whole))
    return blended, magnitude(1.0)
