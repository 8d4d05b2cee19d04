"""The face that every function of this package wears.

A function is written once, for the bytes of one value. `face` adds what all of them share: nulls, ``daft.File``s, errors
that name their row, threads, and the Daft expression.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args

logger = logging.getLogger(__name__)

T = TypeVar("T")
OnError: TypeAlias = Literal["raise", "null"]
Options: TypeAlias = Mapping[str, Any]

# Daft reports each import and each query to its makers unless told otherwise.
_QUIET = {"DO_NOT_TRACK": "1", "DAFT_ANALYTICS_ENABLED": "0", "SCARF_NO_ANALYTICS": "1"}


class MediaError(ValueError):
    """The bytes of a value are not what the function expects."""


def face(
    dtype: Callable[[Any, Options], Any],
    *,
    check: Callable[..., None] | None = None,
    to_column: Callable[[Any], Any] | None = None,
    prefix_bytes: int | None = None,
    batch_rows: int = 64,
    threads: bool = True,
) -> Callable[[Callable[..., T]], Face[T]]:
    """Give a function ``(data: bytes, *, options...) -> value`` its face.

    Args:
        dtype: ``(daft.DataType, options) -> type`` of the column; called when an expression is built.
        check: called with the options before anything is computed, so that a wrong one is an error at once and not a
            bad row. It raises ValueError or TypeError.
        to_column: turns a value into what the column holds, where the two differ.
        prefix_bytes: how much of a File is read; None: all.
        batch_rows: rows that Daft passes at once, which bounds what a batch's results take.
        threads: whether a row takes long enough to be worth a thread. Rows of Files always are.
    """

    def wear(compute: Callable[..., T]) -> Face[T]:
        return Face(compute, dtype, check or _nothing_to_check, to_column, prefix_bytes, batch_rows, threads)

    return wear


class Face(Generic[T]):
    """A function of one value's bytes that also takes None, ``daft.File``s and Daft expressions.

    Called with ``bytes``, ``bytearray``, ``memoryview`` or a ``daft.File``, it computes. Called with None, it gives None.
    Called with a Daft expression (``col("frame_jpg")``) over a binary or File column, it gives an expression, which
    computes in batches, several rows at a time, where the libraries release the GIL.

    Every function takes two more keywords:

    ``on_error``: ``"raise"`` (default) stops at the first value that is not what the function expects, with a
    `MediaError`; ``"null"`` gives null for it. A File that can't be read raises OSError either way: an outage must not
    look like bad pictures.

    ``key``: what an error calls the row beside its position in its batch; an expression such as ``col("sample_token")``.
    """

    __name__: str

    def __init__(
        self,
        compute: Callable[..., T],
        dtype: Callable[[Any, Options], Any],
        check: Callable[..., None],
        to_column: Callable[[Any], Any] | None,
        prefix_bytes: int | None,
        batch_rows: int,
        threads: bool,
    ) -> None:
        functools.update_wrapper(self, compute)
        self._compute = compute
        self._dtype = dtype
        self._check = check
        self._to_column = to_column
        self._prefix_bytes = prefix_bytes
        self._batch_rows = batch_rows
        self._threads = threads
        self._label = f"{compute.__module__}.{compute.__qualname__}"
        self._parameters = inspect.signature(compute)
        extra = [
            inspect.Parameter("on_error", inspect.Parameter.KEYWORD_ONLY, default="raise", annotation="OnError"),
            inspect.Parameter("key", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Any"),
        ]
        self.__signature__ = self._parameters.replace(parameters=[*self._parameters.parameters.values(), *extra])

    def __repr__(self) -> str:
        return f"<{self._label}{self.__signature__}>"

    def __reduce__(self) -> str:
        # By name, as functions are: Daft sends it to other processes inside an expression.
        return str(self._compute.__qualname__)

    def __call__(self, data: Any, *, on_error: OnError = "raise", key: Any = None, **options: Any) -> Any:
        """Compute one value, or build an expression.

        Raises:
            MediaError: the value is not what the function expects, and ``on_error="raise"``.
            OSError: a File can't be read.
            TypeError: ``data`` or an option is of a wrong kind.
            ValueError: an option is out of range.
        """
        bound = self._bind(on_error, options)
        if _is_a("Expression", data):
            return self._expression(data, key, on_error, bound)
        if _is_a("Expression", key):
            raise TypeError(f"{self._label}: key is an expression, so data must be one too, got {type(data).__name__}")
        return self._value(data, on_error, bound, "" if key is None else f"key {key!r}: ")

    def batch(
        self, values: Iterable[Any], *, keys: Sequence[Any] | None = None, on_error: OnError = "raise", **options: Any
    ) -> list[T | None]:
        """Compute many values at once, on as many threads as the process has cores, in the order given.

        Args:
            values: bytes, Files and None, in any mix.
            keys: one for each value, for errors.
            on_error: as above.
            options: the function's own.

        Raises:
            MediaError: the first value, in order, that is not what the function expects; it names position and key.
        """
        bound = self._bind(on_error, options)
        rows = list(values)
        if keys is not None and len(keys) != len(rows):
            raise ValueError(f"{self._label}: {len(keys)} keys for {len(rows)} values")

        def one(row: int) -> T | None:
            key = "" if keys is None else f" (key {keys[row]!r})"
            return self._value(rows[row], on_error, bound, f"row {row} of a batch of {len(rows)}{key}: ")

        if len(rows) > 1 and (self._threads or any(_is_a("File", value) for value in rows)):
            found = list(_pool(os.getpid()).map(one, range(len(rows))))
        else:
            found = [one(row) for row in range(len(rows))]
        if on_error == "null":
            bad = sum(value is not None and result is None for value, result in zip(rows, found, strict=True))
            if bad:
                logger.info("%s: %d of a batch of %d values were bad and became null", self._label, bad, len(rows))
        return found

    def _bind(self, on_error: str, options: Mapping[str, Any]) -> dict[str, Any]:
        if on_error not in get_args(OnError):
            raise ValueError(f"{self._label}: on_error must be 'raise' or 'null', got {on_error!r}")
        try:
            bound = self._parameters.bind(b"", **options)
        except TypeError as error:
            raise TypeError(f"{self._label}: {error}; the signature is {self.__signature__}") from None
        bound.apply_defaults()
        _, *names = bound.arguments
        chosen = {name: bound.arguments[name] for name in names}
        self._check(**chosen)
        return chosen

    def _value(self, data: Any, on_error: str, options: Options, where: str) -> T | None:
        if data is None:
            return None
        content = self._content(data, where)
        try:
            return self._compute(content, **options)
        except MediaError as error:
            if on_error == "null":
                return None
            raise MediaError(f"{self._label}: {where}{error}") from (error.__cause__ or error)

    def _content(self, data: Any, where: str) -> bytes:
        if isinstance(data, bytes):
            return data
        if isinstance(data, bytearray | memoryview):
            return bytes(data)
        if not _is_a("File", data):
            raise TypeError(
                f"{self._label}: {where}takes bytes, a daft.File, None or a Daft expression such as col('frame_jpg'), "
                f"got {type(data).__name__}"
            )
        try:
            with data.open() as file:
                return bytes(file.read() if self._prefix_bytes is None else file.read(self._prefix_bytes))
        except (OSError, ValueError, RuntimeError) as error:  # Daft's own errors are ValueErrors
            cause = " ".join(str(error).split())[:400]
            place = f"{data.path} {data.position or 0}"
            raise OSError(f"{self._label}: {where}can't read {place}: {type(error).__name__}: {cause}") from error

    def _expression(self, data: Any, key: Any, on_error: OnError, options: dict[str, Any]) -> Any:
        types = _daft().DataType
        dtype = self._dtype(types, options)

        def rows(values: Any, keys: Any = None) -> Any:
            import daft

            kind = values.datatype()
            if not (kind.is_binary() or kind.is_fixed_size_binary() or kind.is_null() or kind.is_file()):
                raise TypeError(f"{self._label}: takes a binary or File column, got {kind}")
            if keys is not None:
                keys = keys.to_pylist() if isinstance(keys, daft.Series) else [keys] * len(values)
            found: list[Any] = self.batch(values.to_pylist(), keys=keys, on_error=on_error, **options)
            if self._to_column is not None:
                found = [None if value is None else self._to_column(value) for value in found]
            return daft.Series.from_pylist(found, dtype=dtype)

        functools.update_wrapper(rows, self._compute)
        del rows.__wrapped__  # type: ignore[attr-defined]
        # Its own process would copy every picture; the libraries release the GIL.
        function = _daft().func.batch(return_dtype=dtype, batch_size=self._batch_rows, use_process=False)(rows)
        return function(data) if key is None else function(data, key)


def _nothing_to_check(**options: Any) -> None:
    """For functions whose options need no check."""


def _is_a(name: str, value: Any) -> bool:
    """Whether ``value`` is a ``daft.File`` or ``daft.Expression``; nothing is, before someone imported Daft."""
    daft = sys.modules.get("daft")
    return daft is not None and isinstance(value, getattr(daft, name, ()))


def _daft() -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import daft

    return daft


@functools.lru_cache(maxsize=1)
def _pool(pid: int) -> ThreadPoolExecutor:  # noqa: ARG001
    """One pool a process, whatever number of batches Daft runs at a time; by pid, as threads do not survive a fork."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ThreadPoolExecutor(cores, thread_name_prefix="udfs")
