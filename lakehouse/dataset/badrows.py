"""Rows whose bytes can't be fetched or decoded: what is reported, and how many are tolerated.

Only `FetchError` and `DecodeError` make a row bad. Any other exception is a mistake in the program and stops the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakehouse.errors import BadRowLimitError, DecodeError, FetchError, LakehouseError, cause_line
from lakehouse.fetch import BlobRef

BadRow = FetchError | DecodeError


@dataclass(frozen=True)
class Report:
    """What happened while one step was made. Small and picklable: it travels beside the batch.

    Attributes:
        rows: rows of the batch as delivered, padding included.
        seconds_fetching, seconds_decoding, seconds_transform: summed over threads.
        bad: one entry per bad value, as in the batch's ``_bad``.
        bad_rows: reason to number of rows; a row that is bad in two columns counts once, for the first.
        nulled: bad rows were delivered as zeros, not skipped.
    """

    rows: int = 0
    bytes_referenced: int = 0
    bytes_fetched: int = 0
    requests: int = 0
    retries: int = 0
    throttles: int = 0
    seconds_backoff: float = 0.0
    seconds_fetching: float = 0.0
    seconds_decoding: float = 0.0
    seconds_transform: float = 0.0
    bad: Sequence[Mapping[str, Any]] = ()
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    nulled: bool = False


def bad_value(row_id: int, column: str, ref: BlobRef | None, error: BadRow) -> dict[str, Any]:
    """The entry of ``_bad`` for one value."""
    return {
        "row": row_id,
        "column": column,
        "uri": None if ref is None else ref.uri,
        "offset": None if ref is None else ref.offset,
        "length": None if ref is None else ref.length,
        "cause": cause_line(error),
    }


def mistake(doing: str, what: str, where: str, error: Exception) -> LakehouseError:
    """The error that stops the run, where a fetcher or decoder raised what no bad row explains."""
    instead = "FetchError" if doing == "fetching" else "DecodeError"
    return LakehouseError(
        f"{where}: {doing} stopped by {cause_line(error)}, raised by {what}. Such an error always stops the run; for bytes "
        f"that can't be read raise lakehouse.{instead} instead, which follows on_error"
    )


class Budget:
    """Counts the bad rows of one rank's epoch.

    Args:
        max_bad: None: any number; int: so many rows an epoch; float: such a share of the rank's rows an epoch.
        epoch_rows: rows that the rank's epoch has.
    """

    def __init__(self, max_bad: float | None, epoch_rows: int) -> None:
        self._epoch_rows = epoch_rows
        self._limit = int(max_bad * epoch_rows) if isinstance(max_bad, float) else max_bad
        self._count = 0

    def spend(self, report: Report) -> None:
        """Count a step's bad rows.

        Raises:
            BadRowLimitError: there are more than allowed.
        """
        self._count += sum(report.bad_rows.values())
        if self._limit is None or self._count <= self._limit or not report.bad:
            return
        last = report.bad[-1]
        raise BadRowLimitError(
            f"{self._count} bad rows in this epoch, max_bad allows {self._limit} of this rank's {self._epoch_rows}; "
            f"the last: row {last['row']} column {last['column']} ({last['uri']} {last['offset']}+{last['length']}): "
            f"{last['cause']}; repair the rows, filter them out, or raise max_bad"
        )
