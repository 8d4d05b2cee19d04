"""Bytes to arrays.

A decoder is any callable ``(data, rng) -> value``: `Image` and `Raw` here, or a function of the user's. ``rng`` is the
generator of the row, seeded by (seed, epoch, position); a decoder that sets ``needs_rng = False`` is given none, which
saves making one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from lakehouse.decode.image import Image
from lakehouse.decode.jpeg import Buffer

__all__ = ["Buffer", "Decoder", "Image", "Raw"]


class Decoder(Protocol):
    """What `Dataset` calls for each value of a BLOB column."""

    def __call__(self, data: Buffer, rng: np.random.Generator, /) -> Any:
        """Decode one value.

        Args:
            data: the value's bytes; not to be kept after the call, nor changed.
            rng: the row's own generator.

        Raises:
            DecodeError: the bytes are not what the decoder expects (a bad row). Every other exception stops the run.
        """


@dataclass(frozen=True)
class Raw:
    """Hands out the bytes as they are stored.

    Example:
        >>> Raw()(memoryview(b"any bytes"))
        b'any bytes'
    """

    needs_rng: ClassVar[bool] = False

    def __call__(self, data: Buffer, rng: np.random.Generator | None = None) -> bytes:  # noqa: ARG002
        """The bytes themselves; copied only where ``data`` is a view of something larger."""
        return bytes(data)
