"""A BLOB column as one process sees it: where its bytes are, how they become values, and what has been learnt of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lakehouse.decode import Raw
from lakehouse.fetch import BlobRef, BlobRefs

Kind = Literal["raw", "place", "call"]

_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}


class Refs(Protocol):
    """References of all rows of an index: `BlobRefs`, or those of several tables behind each other."""

    def take(self, rows: Any, /) -> BlobRefs:
        """Those of these rows, in this order."""
        ...

    def __getitem__(self, row: int, /) -> BlobRef | None: ...


@dataclass
class Sizes:
    """What a column's rows weigh, learnt from the rows seen so far; used to bound memory and to choose threads.

    Attributes:
        value_bytes: the largest decoded row so far; None before the first.
        blob_bytes: the largest row of unknown length so far.
        read_s: seconds that reading a row took lately.
        decode_s: seconds that decoding a row took lately; 0 before the first.
    """

    value_bytes: int | None = None
    blob_bytes: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0

    def learn(self, value_bytes: int) -> None:
        """A row decoded to so much."""
        if self.value_bytes is None or value_bytes > self.value_bytes:
            self.value_bytes = value_bytes


@dataclass(frozen=True)
class BlobColumn:
    """A BLOB column as one process sees it.

    Attributes:
        name: the column.
        refs: byte ranges of all rows of the index.
        decoder: bytes to value.
        ragged: values keep their own shapes, in a list.
        where: index row and column name to its description in errors.
    """

    name: str
    refs: Refs
    decoder: Callable[[Any, Any], Any]
    ragged: bool
    where: Callable[[int, str], str]
    sizes: Sizes

    @property
    def kind(self) -> Kind:
        """How the decoder is used."""
        if isinstance(self.decoder, Raw):
            return "raw"
        return "place" if hasattr(self.decoder, "decode_into") and hasattr(self.decoder, "shape_of") else "call"

    @property
    def sized(self) -> bool:
        """Whether all rows get one shape, whatever their bytes say."""
        return getattr(self.decoder, "size", None) is not None

    @property
    def listed(self) -> bool:
        """Whether decoded arrays are delivered as a list."""
        return self.ragged and not self.sized

    def empty_shape(self) -> tuple[int, ...]:
        """A row's shape where not one row could be read: as the decoder says, or without height and width."""
        if self.sized:
            return tuple(self.decoder.shape_of(b""))  # type: ignore[attr-defined]
        channels = _CHANNELS.get(getattr(self.decoder, "mode", "RGB"), 3)
        return (channels, 0, 0) if getattr(self.decoder, "layout", "HWC") == "CHW" else (0, 0, channels)
