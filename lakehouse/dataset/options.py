"""Checks of what `Dataset` is given, so that a mistake shows at construction and names what is allowed."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa
import torch

from lakehouse.cache import Cache
from lakehouse.dataset.columns import fill_scalar, fillable
from lakehouse.decode import Raw
from lakehouse.errors import ConfigError, NotFoundError, SchemaError


def whole_number(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """An int of the range.

    Raises:
        ConfigError: another type, or outside.
    """
    allowed = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        raise ConfigError(f"{name} must be {allowed}, got {value!r}")
    return number


def one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    """Checks a mode.

    Raises:
        ConfigError: not one of those.
    """
    if not any(value is item or (isinstance(value, str) and value == item) for item in allowed):
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")


def flag(name: str, value: object) -> bool:
    """A bool, and nothing that only looks like one.

    Raises:
        ConfigError: another type.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}")
    return value


def bad_limit(value: object) -> float | None:
    """``max_bad``: None, a count (int), or a share of the rank's epoch (float from 0 to 1).

    Raises:
        ConfigError: none of these.
    """
    if value is None:
        return None
    if isinstance(value, float):
        if not 0.0 <= value <= 1.0:
            raise ConfigError(f"max_bad as a float is a share of the rank's epoch, from 0.0 to 1.0; got {value!r}")
        return value
    try:
        return whole_number("max_bad", value, least=0)
    except ConfigError as error:
        raise ConfigError(f"max_bad must be None, a count (int) or a share (float from 0.0 to 1.0); got {value!r}") from error


def place(rank: int | None, world: int | None) -> tuple[int, int]:
    """This process's rank and the number of ranks: as given, else torch.distributed, else RANK and WORLD_SIZE, else 0 of 1.

    Raises:
        ConfigError: one without the other, or a rank outside the world.
    """
    if (rank is None) != (world is None):
        raise ConfigError(f"rank and world belong together; got rank={rank!r}, world={world!r}")
    source = "given"
    if rank is None or world is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world, source = torch.distributed.get_rank(), torch.distributed.get_world_size(), "torch.distributed"
        else:
            rank, world = _environment()
            source = "the environment's RANK and WORLD_SIZE"
    world = whole_number("world", world, least=1)
    try:
        return whole_number("rank", rank, least=0, most=world - 1), world
    except ConfigError as error:
        raise ConfigError(f"{error} (world is {world}; from {source})") from error


def _environment() -> tuple[int, int]:
    texts = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")}
    try:
        numbers = {name: int(text) for name, text in texts.items() if text}
    except ValueError as error:
        raise ConfigError(f"the environment's RANK and WORLD_SIZE must be whole numbers; got {texts}") from error
    world = numbers.get("WORLD_SIZE", 1)
    if len(numbers) == 1 and (world > 1 or "RANK" in numbers):
        # Guessing here would let every process read every row.
        raise ConfigError(f"the environment sets only one of RANK and WORLD_SIZE: {texts}; set both, or pass rank= and world=")
    return numbers.get("RANK", 0), world


def selected_columns(columns: object, schema: pa.Schema) -> tuple[str, ...]:
    """The columns of a batch in order; None: all of the index.

    Raises:
        ConfigError: no sequence of names, an empty one, or a name twice.
        NotFoundError: no such column.
        SchemaError: a name that batches use for something else.
    """
    if columns is None:
        chosen = tuple(schema.names)
    elif isinstance(columns, str) or not isinstance(columns, Sequence) or not all(isinstance(c, str) for c in columns):
        raise ConfigError(f"columns must be a sequence of column names, got {columns!r}")
    else:
        chosen = tuple(columns)
    for name in chosen:
        if name not in schema.names:
            raise NotFoundError(_no_column("columns", name, schema.names))
    if not chosen or len(set(chosen)) != len(chosen):
        raise ConfigError(f"columns must name at least one column, each once; got {list(chosen)}")
    for name in chosen:
        if name in ("valid", "_bad") or (name.endswith("_ok") and name[: -len("_ok")] in chosen):
            raise SchemaError(
                f"column {name!r}: batches use this name themselves (valid, _bad, <column>_ok); "
                "rename the column, or leave it out with columns=[...]"
            )
    return chosen


def decoders(decode: object, chosen: Sequence[str], schema: pa.Schema, blobs: Sequence[str]) -> dict[str, Any]:
    """A decoder for every BLOB column of the batch; `Raw` where none is named.

    Raises:
        ConfigError: no mapping, or a value that is no decoder.
        NotFoundError: a column that the batch does not have.
        SchemaError: a column that is no BLOB.
    """
    given: dict[str, Any] = {name: Raw() for name in chosen if name in blobs}
    if decode is None:
        return given
    if not isinstance(decode, Mapping):
        raise ConfigError(f"decode must be a mapping of BLOB column to decoder, got {type(decode).__name__}")
    for name, decoder in decode.items():
        if name not in schema.names:
            raise NotFoundError(_no_column("decode", name, schema.names))
        if name not in blobs:
            raise SchemaError(
                f"decode names column {name!r} of type {schema.field(name).type}; only BLOB columns are decoded: "
                f"{', '.join(blobs) or 'this index has none'}"
            )
        if name not in chosen:
            raise ConfigError(f"decode names column {name!r}, which columns={list(chosen)} leaves out")
        if isinstance(decoder, type) or not callable(decoder):
            hint = f"; did you mean {decoder.__name__}()?" if isinstance(decoder, type) else ""
            raise ConfigError(
                f"decode[{name!r}] must be a decoder such as Image(), Raw() or a function (data, rng) -> array, "
                f"got {decoder!r}{hint}"
            )
        given[name] = decoder
    return given


def fills(fill: object, chosen: Sequence[str], schema: pa.Schema) -> dict[str, Any]:
    """The value that replaces null numbers, by column.

    Raises:
        ConfigError: no mapping.
        NotFoundError: a column that the batch does not have.
        SchemaError: a column that holds no numbers, or a value that its type can't hold.
    """
    if fill is None:
        return {}
    if not isinstance(fill, Mapping):
        raise ConfigError(f"fill must be a mapping of column to value, got {type(fill).__name__}")
    for name, value in fill.items():
        if name not in chosen:
            raise NotFoundError(_no_column("fill", name, chosen))
        kind = schema.field(name).type
        if not fillable(kind):
            raise SchemaError(f"fill names column {name!r} of type {kind}; only null numbers and booleans are filled")
        fill_scalar(name, kind.value_type if pa.types.is_dictionary(kind) else kind, value)
    return dict(fill)


def _no_column(option: str, name: object, names: Sequence[str]) -> str:
    near = get_close_matches(str(name), names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{option} names {name!r}, which is not a column{hint} Columns: {', '.join(names)}"


def cache_for(cache: object, fetcher: object) -> None:
    """Check that a cache can serve a fetcher.

    Raises:
        ConfigError: no cache, a fetcher that does not know versions of objects, or a folder inside the data's.
    """
    if not isinstance(cache, Cache):
        raise ConfigError(f"cache is a lakehouse.Cache(path, max_bytes), got {cache!r}")
    if not callable(getattr(fetcher, "identity", None)):
        raise ConfigError(
            f"cache= needs a fetcher with a method identity(uri) -> str | None, which tells changed objects apart; "
            f"{type(fetcher).__name__} has none"
        )
    cache.refuse_inside(tuple(getattr(fetcher, "folders", ())))
