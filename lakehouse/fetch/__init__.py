"""Byte ranges to bytes.

    refs ──plan (pure)──> spans ──run (threads, retries)──> bytes ──cut──> one value per reference, in the order asked

`LocalFetcher` reads local files one range at a time, `RangeFetcher` merges ranges of remote objects, `TableFetcher` chooses
between them and refuses what a table must not read, `VerifyingFetcher` checks ``.blob`` records on top of any of them.

Nothing that is open, locked or running crosses a fork: each process makes its own.
"""

from __future__ import annotations

from lakehouse.fetch.fsspec_reader import fsspec_read_range
from lakehouse.fetch.local import LocalFetcher
from lakehouse.fetch.plan import SpanPlan, plan_spans
from lakehouse.fetch.process import PerProcess
from lakehouse.fetch.reads import ReadRange
from lakehouse.fetch.refs import TO_END, BlobRef, BlobRefs, Fetched, Fetcher, FetchStats, answered, exact_sum, fetch_blob
from lakehouse.fetch.remote import GAP_BYTES, LEAST_SPAN_BYTES, WASTE, RangeFetcher
from lakehouse.fetch.retry import ReadError, Verdict, classify, persistently
from lakehouse.fetch.table import TableFetcher
from lakehouse.fetch.verify import VerifyingFetcher

__all__ = [
    "GAP_BYTES",
    "LEAST_SPAN_BYTES",
    "TO_END",
    "WASTE",
    "BlobRef",
    "BlobRefs",
    "FetchStats",
    "Fetched",
    "Fetcher",
    "LocalFetcher",
    "PerProcess",
    "RangeFetcher",
    "ReadError",
    "ReadRange",
    "SpanPlan",
    "TableFetcher",
    "Verdict",
    "VerifyingFetcher",
    "answered",
    "classify",
    "exact_sum",
    "fetch_blob",
    "fsspec_read_range",
    "persistently",
    "plan_spans",
]
