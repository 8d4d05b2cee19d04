"""Which values of two arrays differ: nulls equal nulls, NaN equals NaN."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def differing(old: pa.Array, new: pa.Array) -> npt.NDArray[np.bool_]:
    """Where two arrays of one length differ, bool[n]. A column that was widened in between is compared as the wider type."""
    if old.type != new.type:
        old = old.cast(new.type)
    if pa.types.is_nested(new.type):
        if old.equals(new):
            return np.zeros(len(new), np.bool_)
        pairs = zip(old.to_pylist(), new.to_pylist(), strict=True)
        return np.array([not _same(one, other) for one, other in pairs], np.bool_)
    differ = pc.not_equal(old, new)
    if pa.types.is_floating(new.type):
        differ = pc.and_(differ, pc.invert(pc.and_(pc.is_nan(old), pc.is_nan(new))))
    mask = differ.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    nulls = [array.is_null().to_numpy(zero_copy_only=False) for array in (old, new)]
    return np.asarray(mask | (nulls[0] != nulls[1]), np.bool_)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other)


def codes(columns: list[tuple[pa.Array, pa.Array]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A number for each row of two tables, equal exactly where all its columns are: int64[n], int64[m]."""
    split = len(columns[0][0])
    total = np.zeros(split + len(columns[0][1]), np.int64)
    for old, new in columns:
        joined = pa.concat_arrays([old.cast(new.type), new]).dictionary_encode(null_encoding="encode")
        each = joined.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        _, total = np.unique(total * (len(joined.dictionary) + 1) + each, return_inverse=True)
    return total[:split].astype(np.int64), total[split:].astype(np.int64)
