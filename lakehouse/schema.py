"""Column declarations, and the two-way mapping between Arrow types and what a Paimon table holds.

A type is accepted when every value of it comes back equal. Where Paimon lacks a type but holds all its values in a wider
one, the column is stored in the wider one (``uint8`` becomes ``int16``) and `Table.schema` shows that; every other type
is refused at `create_table`, naming the column.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakehouse.errors import NotFoundError, SchemaError, cause_line

if TYPE_CHECKING:
    from pypaimon import Schema as PaimonSchema

logger = logging.getLogger(__name__)

# Names that Paimon adds to rows by itself, and the prefix by which it tells key columns from others.
RESERVED_COLUMNS = frozenset({"_ROW_ID", "_SEQUENCE_NUMBER", "_VALUE_KIND"})
_KEY_PREFIX = "_KEY_"
TABLE_UUID_OPTION = "lakehouse.table-uuid"
REFERENCE_OPTION = "blob-descriptor-field"
_REFERENCE_KEY = b"lakehouse.reference"

# What every table gets, and why:
TABLE_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "bucket": "-1",  # BLOB tables have no key to hash
        "file.format": "parquet",
        "row-tracking.enabled": "true",  # row ids: what an index, a fingerprint and an update refer to
        "data-evolution.enabled": "true",  # column files beside row files: BLOBs, and updates that rewrite no BLOB
        "deletion-vectors.enabled": "true",  # rows can be deleted without rewriting their files
        "metadata.stats-mode": "full",  # the Python writer's default is none: nothing would be skipped
        "blob.copy-buffer-size": "1 mb",  # 4 KB by default: 1.4 times slower when BLOBs are copied as streams
        "commit.max-retries": "100",  # 10 by default: four writers on one table run out of them
    }
)
# Without these a table has no row ids or can't hold BLOBs, so nothing of this package would work on it.
_FIXED_OPTIONS = ("bucket", "row-tracking.enabled", "data-evolution.enabled", "file.format")
_VECTOR_VALUES = (pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_float32, pa.types.is_float64)


@dataclass(frozen=True)
class Blob:
    """Declares a BLOB column: bytes of any size, read lazily, kept out of the row files.

    Args:
        reference: store a `BlobRef` (uri, offset, length) instead of a copy of the bytes. Such a column takes only
            `BlobRef`s, and reading it needs the uri to lie in the table's own folder or under a root listed in the
            catalog's ``blob_roots``.
        comment: stored beside the column.
    """

    reference: bool = False
    comment: str | None = None


@dataclass(frozen=True)
class Schema:
    """Column declarations in table order.

    Args:
        fields: name to `pyarrow.DataType`, `pyarrow.Field`, `Blob`, or a decoder such as `Image` (declares a BLOB whose
            bytes that decoder reads).

    Raises:
        SchemaError: a declaration of another kind.

    Example:
        >>> import lakehouse as lh, pyarrow as pa
        >>> schema = lh.Schema({"id": pa.int64(), "frame_jpg": lh.Image(codec="jpeg"), "lidar": lh.Blob(reference=True)})
        >>> schema.arrow.names
        ['id', 'frame_jpg', 'lidar']
    """

    fields: Mapping[str, Any]
    arrow: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.fields, Mapping):
            raise SchemaError(
                f"lh.Schema takes a mapping of column name to type, got {type(self.fields).__name__}; "
                "for a pyarrow.Schema pass that schema itself"
            )
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))
        object.__setattr__(self, "arrow", pa.schema([declared_field(name, kind) for name, kind in self.fields.items()]))

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (dict(self.fields),)


def declared_field(name: str, kind: Any) -> pa.Field:
    """The field that a declaration stands for.

    Raises:
        SchemaError: it declares no column.
    """
    if not isinstance(name, str):
        raise SchemaError(f"a column's name is a string, got {name!r}")
    if isinstance(kind, pa.Field):
        return kind.with_name(name)
    if isinstance(kind, pa.DataType):
        return pa.field(name, kind)
    if isinstance(kind, Blob):
        metadata: dict[bytes, bytes] = {_REFERENCE_KEY: b"true"} if kind.reference else {}
        if kind.comment:
            metadata[b"description"] = kind.comment.encode()
        return pa.field(name, pa.large_binary(), metadata=metadata or None)
    if callable(kind) and not isinstance(kind, type):  # a decoder: Image(...), Raw()
        return pa.field(name, pa.large_binary(), metadata={b"description": repr(kind).encode()})
    raise SchemaError(
        f"column {name}: {kind!r} declares no column; use a pyarrow.DataType, a pyarrow.Field, lh.Blob() or lh.Image()"
    )


def as_arrow(schema: pa.Schema | Schema) -> pa.Schema:
    """The declared columns as an Arrow schema.

    Raises:
        SchemaError: neither a `pyarrow.Schema` nor a `Schema`.
    """
    if isinstance(schema, Schema):
        return schema.arrow
    if isinstance(schema, pa.Schema):
        return schema
    raise SchemaError(f"a schema must be a pyarrow.Schema or lh.Schema, got {type(schema).__name__}")


def stored_schema(declared: pa.Schema) -> pa.Schema:
    """The schema that a table holds for the declared one: equal, or wider where Paimon lacks a type.

    Raises:
        SchemaError: a column that Paimon can't hold without changing values, or a name that it keeps for itself.
    """
    if not len(declared):
        raise SchemaError("a table needs at least one column")
    seen: set[str] = set()
    fields = []
    for item in declared:
        check_column_name(item.name, seen)
        stored = stored_type(item.type, item.name)
        if stored != item.type:
            logger.info("column %s: declared %s, stored as %s (every value is kept)", item.name, item.type, stored)
        fields.append(pa.field(item.name, stored, nullable=item.nullable, metadata=item.metadata))
    if all(pa.types.is_large_binary(item.type) for item in fields):
        raise SchemaError("a table needs at least one column beside its BLOB columns: row ids are kept in its row files")
    return pa.schema(fields)


def check_column_name(name: str, seen: set[str]) -> None:
    """Check that a column can have this name, and add it to those seen.

    Raises:
        SchemaError: it is blank, kept by Paimon for itself, or seen already.
    """
    if not name or name.isspace():
        raise SchemaError("a column's name is blank; give every column a name")
    if name in RESERVED_COLUMNS or name.startswith(_KEY_PREFIX):
        reserved = ", ".join([*sorted(RESERVED_COLUMNS), f"{_KEY_PREFIX}..."])
        raise SchemaError(f"column {name}: Paimon keeps this name for itself; reserved: {reserved}")
    if name in seen:
        raise SchemaError(f"column {name} is declared twice; column names must be unique")
    seen.add(name)


def stored_type(kind: pa.DataType, column: str) -> pa.DataType:
    """The type in which a table holds values of ``kind``.

    Raises:
        SchemaError: no type of Paimon holds all its values.
    """
    if pa.types.is_large_binary(kind):
        return kind
    if pa.types.is_fixed_size_list(kind) and kind.list_size and any(test(kind.value_type) for test in _VECTOR_VALUES):
        # Without nullability of its values: a vector holds no nulls at all, which `Table.append` sees to.
        return pa.list_(kind.value_type, kind.list_size)
    return _stored(kind, column)


def _stored(kind: pa.DataType, path: str) -> pa.DataType:
    types = pa.types
    if types.is_boolean(kind) or types.is_signed_integer(kind) or types.is_float32(kind) or types.is_float64(kind):
        return kind
    if types.is_uint8(kind):
        return pa.int16()
    if types.is_uint16(kind):
        return pa.int32()
    if types.is_uint32(kind):
        return pa.int64()
    if types.is_uint64(kind):
        raise _refused(path, kind, "Paimon has no unsigned integers: use int64, or decimal128(20, 0) for values above 2**63")
    if types.is_float16(kind):
        return pa.float32()
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_fixed_size_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_large_binary(kind):
        raise _refused(path, kind, "a BLOB (large_binary) must be a column of its own; use binary to keep small bytes inside")
    if types.is_decimal(kind):
        if not (0 < kind.precision <= 38 and 0 <= kind.scale <= kind.precision):
            raise _refused(path, kind, "Paimon holds decimals of precision 1 to 38 and scale 0 to precision")
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_timestamp(kind):
        return pa.timestamp(kind.unit, tz="UTC") if kind.tz is not None else kind
    if types.is_date(kind):
        return pa.date32()
    if types.is_time(kind):
        return pa.time32("ms")
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _stored(kind.value_type, path)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = kind.value_field
        return pa.list_(pa.field("item", _stored(item.type, f"{path}[]"), nullable=item.nullable))
    if types.is_struct(kind):
        if not kind.num_fields:
            raise _refused(path, kind, "an empty struct can't be stored")
        if len({item.name for item in kind}) < kind.num_fields:
            raise _refused(path, kind, "two fields have one name; rename one of them")
        if {item.name for item in kind} == {"value", "metadata"}:
            raise _refused(path, kind, "Paimon takes a struct of value and metadata for a VARIANT; rename one of the two")
        return pa.struct([pa.field(i.name, _stored(i.type, f"{path}.{i.name}"), nullable=i.nullable) for i in kind])
    if types.is_map(kind):
        key = pa.field("key", _stored(kind.key_type, f"{path}{{key}}"), nullable=False)
        item = pa.field("value", _stored(kind.item_type, f"{path}{{value}}"), nullable=kind.item_field.nullable)
        return pa.map_(key, item)
    if types.is_null(kind):
        raise _refused(path, kind, "a column of nulls has no type: declare the type that its values will have")
    hint = "use int64 and keep the unit in the column's name" if types.is_duration(kind) else "use a type that Paimon has"
    raise _refused(path, kind, hint)


def _refused(path: str, kind: pa.DataType, hint: str) -> SchemaError:
    return SchemaError(f"column {path}: a Paimon table can't hold {kind}; {hint}")


def table_options(options: Mapping[str, Any] | None, references: Iterable[str], uuid: str) -> dict[str, str]:
    """Table options: ours, then the user's on top.

    Raises:
        SchemaError: the user's contradict one that every table of this package needs.
    """
    merged = dict(TABLE_OPTIONS)
    if not isinstance(options, (Mapping, type(None))):
        raise SchemaError(f"options is a mapping of Paimon table options, got {type(options).__name__}")
    for key, value in (options or {}).items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if key in _FIXED_OPTIONS and text != TABLE_OPTIONS[key]:
            raise SchemaError(f"option {key}={text}: tables with BLOB columns and row ids need {key}={TABLE_OPTIONS[key]}")
        merged[str(key)] = text
    if names := sorted({*references, *filter(None, merged.get(REFERENCE_OPTION, "").split(","))}):
        if any("," in name for name in names):
            raise SchemaError("a column declared by reference can't have a comma in its name: Paimon lists them by commas")
        merged[REFERENCE_OPTION] = ",".join(names)
    merged.setdefault(TABLE_UUID_OPTION, uuid)
    return merged


def paimon_schema(
    declared: pa.Schema, partition_by: Iterable[str], options: Mapping[str, Any] | None, uuid: str
) -> PaimonSchema:
    """The pypaimon schema for a declared one.

    Raises:
        SchemaError: see `stored_schema`; a partition column that is absent, repeated, or of a type with no exact folder name.
    """
    from pypaimon import Schema as PaimonSchema

    stored = stored_schema(declared)
    references = [item.name for item in declared if is_reference(item)]
    keys = _partition_keys(stored, partition_by)
    merged = table_options(options, references, uuid)
    try:
        return PaimonSchema.from_pyarrow_schema(stored, partition_keys=keys, options=merged)
    except ValueError as error:
        raise SchemaError(f"Paimon refuses this schema: {cause_line(error)}") from error


def is_reference(declared: pa.Field) -> bool:
    """Whether a column is declared by reference (`Blob`)."""
    return bool((declared.metadata or {}).get(_REFERENCE_KEY) == b"true")


def _partition_keys(stored: pa.Schema, partition_by: Iterable[str]) -> list[str]:
    if not isinstance(partition_by, Iterable):
        raise SchemaError(f"partition_by is a list of column names, got {partition_by!r}")
    keys = [partition_by] if isinstance(partition_by, str) else list(partition_by)
    for key in keys:
        if key not in stored.names:
            raise SchemaError(f"partition_by names {key!r}, which is not a column; columns: {', '.join(stored.names)}")
        kind = stored.field(key).type
        if pa.types.is_nested(kind) or pa.types.is_large_binary(kind):
            raise SchemaError(f"column {key}: {kind} can't be a partition key; use a string, number, date or timestamp")
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            raise SchemaError(f"column {key}: Paimon cuts partition keys to microseconds; declare timestamp('us')")
    if len(set(keys)) != len(keys):
        raise SchemaError(f"partition_by repeats a column: {', '.join(keys)}")
    if len(keys) == len(stored):
        raise SchemaError("every column is a partition key; at least one column must hold data")
    return keys


@dataclass(frozen=True)
class Columns:
    """A table's columns as its files hold them.

    Attributes:
        arrow: in table order; BLOB columns are ``large_binary``.
        blobs: names of BLOB columns (one BLOB a row).
        references: those of ``blobs`` that store a reference instead of bytes.
        inline: columns whose BLOB references are read row by row from descriptors, since no ``.blob`` file of this table
            indexes them: ``references``, BLOB views, lists and maps of BLOBs.
        partition_by: names of the partition columns.
    """

    arrow: pa.Schema
    blobs: tuple[str, ...]
    references: frozenset[str]
    inline: frozenset[str]
    partition_by: tuple[str, ...]

    @classmethod
    def of(cls, paimon_table: Any) -> Columns:
        """The columns of a pypaimon table handle."""
        from pypaimon.schema.data_types import PyarrowFieldParser

        arrow = PyarrowFieldParser.from_paimon_schema(paimon_table.fields)
        options = paimon_table.options
        references = frozenset(options.blob_descriptor_fields())
        nested = {item.name for item in arrow if _holds_blobs(item.type) and not pa.types.is_large_binary(item.type)}
        return cls(
            arrow=arrow,
            blobs=tuple(item.name for item in arrow if pa.types.is_large_binary(item.type)),
            references=references,
            inline=references | frozenset(options.blob_view_fields()) | frozenset(nested),
            partition_by=tuple(paimon_table.partition_keys),
        )

    @property
    def lazy(self) -> frozenset[str]:
        """Columns that hold BLOBs in any form."""
        return frozenset(self.blobs) | self.inline


def _holds_blobs(kind: pa.DataType) -> bool:
    if pa.types.is_large_binary(kind):
        return True
    return (pa.types.is_list(kind) and _holds_blobs(kind.value_type)) or (
        pa.types.is_map(kind) and _holds_blobs(kind.item_type)
    )


def known_columns(names: Iterable[str], schema: pa.Schema, *, otherwise: str = "") -> None:
    """Check that columns exist.

    Args:
        names: which.
        schema: what there is.
        otherwise: what a name that resembles no column may have been meant as.

    Raises:
        NotFoundError: naming the nearest column and listing all.
    """
    for name in sorted(map(str, names)):
        if name not in schema.names:
            near = get_close_matches(name, schema.names, 1)
            hint = f", did you mean {near[0]!r}?" if near else f"{otherwise};"
            raise NotFoundError(f"no column {name!r}{hint} columns: {', '.join(schema.names)}")
