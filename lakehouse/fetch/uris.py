"""Uris of a saved index: relative to the table's folder, and read one by one where there are many.

A table of references may name as many files as it has rows. As Python texts these would be in the memory of every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import pyarrow as pa


def relative(uri: str, path: str) -> str:
    """A uri inside the table's folder without that folder, so that a moved warehouse keeps its indexes."""
    for prefix in (path, f"file://{path}"):
        if uri.startswith(f"{prefix}/"):
            return f"./{uri[len(prefix) + 1 :]}"
    return uri


def absolute(uri: str, path: str) -> str:
    """The uri that `relative` made relative."""
    return f"{path}/{uri[2:]}" if uri.startswith("./") else uri


class Uris(Sequence[str]):
    """Uris in an Arrow array, which may be mapped from a file; each becomes a text when it is asked for.

    Args:
        texts: as `relative` writes them.
        path: the table's folder.
    """

    __slots__ = ("path", "texts")

    def __init__(self, texts: pa.Array, path: str) -> None:
        self.texts = texts
        self.path = path

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, i: int) -> str: ...

    @overload
    def __getitem__(self, i: slice) -> tuple[str, ...]: ...

    def __getitem__(self, i: int | slice) -> str | tuple[str, ...]:
        if isinstance(i, slice):
            return tuple(absolute(text, self.path) for text in self.texts[i].to_pylist())
        return absolute(self.texts[int(i)].as_py(), self.path)

    def __reduce__(self) -> tuple[type[Uris], tuple[pa.Array, str]]:
        return Uris, (self.texts, self.path)
