"""New columns computed by Daft's kernels from rows at hand."""

from __future__ import annotations

import pyarrow as pa
from daft.recordbatch import RecordBatch

from lakehouse.errors import SchemaError, cause_line
from lakehouse.query.daft_types import empty_frame, for_daft
from lakehouse.query.engine import Expression
from lakehouse.query.walk import columns_of
from lakehouse.schema import Columns, known_columns


def computed_from(expression: Expression, columns: Columns, name: str) -> tuple[str, ...]:
    """The columns that an expression reads, in table order.

    Args:
        expression: a Daft expression.
        columns: the table's.
        name: of the column that it is for.

    Raises:
        NotFoundError: it reads a column that does not exist.
        SchemaError: it does not fit the columns' types, or reads a BLOB.
    """
    read = columns_of(expression, columns)
    known_columns(read, columns.arrow)
    if blobs := sorted(read & columns.lazy):
        raise SchemaError(
            f"column {name}: {expression} reads the BLOB column {', '.join(blobs)}; pass a function of the rows, which gets "
            "references to the bytes"
        )
    try:
        empty_frame(columns).select(expression.alias("value"))
    except Exception as error:  # Daft's own class for this is private
        raise SchemaError(f"column {name}: {expression} does not fit the columns: {cause_line(error)}") from error
    return tuple(column for column in columns.arrow.names if column in read)


def computed(expression: Expression, rows: pa.Table, name: str) -> pa.Array:
    """One value for each row.

    Raises:
        SchemaError: a function that the expression calls raised.
    """
    given = pa.table({column: for_daft(rows.column(column)) for column in rows.column_names})
    batch = RecordBatch.from_arrow_record_batches(given.to_batches(), given.schema)
    try:
        answer = batch.eval_expression_list([expression.alias("value")]).to_arrow_record_batch().column(0)
    except Exception as error:  # Daft raises private classes, and whatever a UDF raises
        raise SchemaError(f"column {name}: {expression} can't be evaluated: {cause_line(error)}") from error
    if len(answer) == 1 != rows.num_rows:  # a literal
        answer = pa.concat_arrays([answer] * rows.num_rows)
    return answer
