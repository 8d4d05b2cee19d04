"""Whether BLOBs differ, without reading them.

The same range of the same file is the same BLOB. Where bytes have moved (a compaction, a rewritten row), equal lengths are
followed by a look at the CRC32 that the ``.blob`` record keeps behind the payload: 12 bytes a record instead of all of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lakehouse.errors import FetchError
from lakehouse.fetch import BlobRefs, Fetcher

_TAIL_BYTES = 12  # record length u64, crc32 u32


def blobs_differ(old: BlobRefs, new: BlobRefs, fetchers: tuple[Fetcher, Fetcher], where: str) -> npt.NDArray[np.bool_]:
    """Where two columns of references into ``.blob`` files differ, bool[n].

    Raises:
        FetchError: the end of a record can't be read.
    """
    uris = {uri: number for number, uri in enumerate(dict.fromkeys((*old.uris, *new.uris)))}
    ids = [_renumbered(refs, uris) for refs in (old, new)]
    null = [number < 0 for number in ids]
    both = ~null[0] & ~null[1]
    differ = (null[0] != null[1]) | (both & (old.lengths != new.lengths))
    moved = np.flatnonzero(both & ~differ & ((ids[0] != ids[1]) | (old.offsets != new.offsets)))
    if len(moved):
        tails = [_tails(refs.take(moved), fetcher, where) for refs, fetcher in zip((old, new), fetchers, strict=True)]
        differ[moved] = np.array([one != other for one, other in zip(*tails, strict=True)], np.bool_)
    return np.asarray(differ, np.bool_)


def _renumbered(refs: BlobRefs, uris: dict[str, int]) -> npt.NDArray[np.int64]:
    numbers = np.array([uris[uri] for uri in refs.uris] or [-1], np.int64)
    return np.where(refs.uri_ids < 0, -1, numbers[refs.uri_ids])


def _tails(refs: BlobRefs, fetcher: Fetcher, where: str) -> list[bytes]:
    ends = BlobRefs(refs.uris, refs.uri_ids, refs.offsets + refs.lengths, np.full(len(refs), _TAIL_BYTES, np.int64))
    tails = []
    for value in fetcher.fetch(ends).values:
        if isinstance(value, FetchError) or value is None:
            raise FetchError(f"{where}: a record's checksum can't be read ({value})")
        tails.append(bytes(value))
    return tails
