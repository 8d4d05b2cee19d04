"""Splitting an index by a hash of a column or of the row id, so that rows added later move no other row."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.errors import ConfigError


def assign(parts: Mapping[str, float], values: pa.Array | npt.NDArray[np.int64], seed: int) -> dict[str, npt.NDArray[np.int64]]:
    """Which rows go to which part.

    Args:
        parts: name to share; shares add up to at most 1, the rest is left out.
        values: what is hashed, one a row: equal values share a part.
        seed: another seed deals values out anew.

    Returns:
        Ascending row positions for each part.

    Raises:
        ConfigError: no parts, a share that is no share, or a sum above 1.
    """
    if not isinstance(parts, Mapping) or not parts:
        raise ConfigError(f'split() takes parts like {{"train": 0.8, "val": 0.2}}, got {parts!r}')
    for name, share in parts.items():
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise ConfigError(f"split(): the share of {name!r} is a number from 0 to 1, got {share!r}")
    total = math.fsum(parts.values())
    if total > 1 + 1e-9:
        raise ConfigError(f"split(): the shares add up to {total:g}, more than 1")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"split(): seed is 0 or more, got {seed!r}")
    points = _points(values, seed)  # [rows] in [0, 1)
    bounds = np.cumsum([0.0, *parts.values()])
    if abs(total - 1) <= 1e-9:
        bounds[-1] = 1.0
    return {name: np.flatnonzero((points >= bounds[i]) & (points < bounds[i + 1])) for i, name in enumerate(parts)}


def _points(values: pa.Array | npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.float64]:
    if isinstance(values, np.ndarray):
        return _integer_points(values, seed)
    encoded = values.dictionary_encode(null_encoding="encode")
    points = np.array([_point(value, seed) for value in encoded.dictionary.to_pylist()], np.float64)
    return points[encoded.indices.to_numpy(zero_copy_only=False)] if len(values) else np.empty(0)


def _point(value: Any, seed: int) -> float:
    text = f"{seed}\0{type(value).__name__}\0{value!r}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") / 2**64


def _integer_points(values: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.float64]:
    """Row ids, without a Python object for each: two rounds of splitmix64's finaliser (Steele, Lea and Flood 2014)."""
    first, second = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
    with np.errstate(over="ignore"):
        mixed = values.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x5851F42D4C957F2D) % 2**64)
        for _ in range(2):
            mixed = (mixed ^ (mixed >> np.uint64(30))) * first
            mixed = (mixed ^ (mixed >> np.uint64(27))) * second
            mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) / 2**53
