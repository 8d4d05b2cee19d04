"""Every fault of stored bytes at once, in real files: the same rows and reports on any topology and after any resume."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as PILImage

from lakehouse.dataset import Dataset
from lakehouse.decode import Image
from lakehouse.errors import BadRowLimitError, DecodeError, FetchError, LakehouseError
from lakehouse.fetch import BlobRefs
from lakehouse.index import RowIndex, Source
from lakehouse.loader import Loader
from lakehouse.testing import assert_elastic, assert_resumable
from tests.training import Maker, jpeg, stored, write_blobs

N = 48
PNG = io.BytesIO()
PILImage.new("RGB", (32, 24), "red").save(PNG, "PNG")

# Index row to what is stored there, and what its report says.
STORED: dict[int, tuple[bytes | None, str]] = {
    3: (jpeg(3)[:-45], "DecodeError: "),  # truncated
    8: (b"", "DecodeError: "),
    14: (b"these are words, no image", "DecodeError: "),
    15: (b"%PDF-1.7\n" + bytes(500), "DecodeError: "),  # another type
    22: (b"\0\0\0\x20ftypisom" + bytes(500), "DecodeError: "),
    27: (None, "DecodeError: the BLOB is null"),
}
FLIPPED, ELSEWHERE_GONE, CUT = 30, 36, 41  # a byte of the payload; a file of its own that is deleted; one that ends early
BAD = {*STORED, FLIPPED, ELSEWHERE_GONE, CUT}
CAUSES = {
    **{i: cause for i, (_, cause) in STORED.items()},
    FLIPPED: "FetchError: ",
    ELSEWHERE_GONE: "FetchError: ",
    CUT: "FetchError: ",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> RowIndex:
    """One file of the table, and two files outside of it that rows refer to as a whole."""
    folder = tmp_path_factory.mktemp("bad")
    values: list[bytes | None] = [STORED[i][0] if i in STORED else jpeg(i) for i in range(N)]
    values[5] = PNG.getvalue()  # no JPEG either, but a picture
    refs = write_blobs(folder / "image.blob", values)
    uris = (*refs.uris, str(folder / "gone.jpg"), str(folder / "cut.jpg"))
    uri_ids, offsets, lengths = (array.copy() for array in (refs.uri_ids, refs.offsets, refs.lengths))
    for row, uri_id in ((ELSEWHERE_GONE, 1), (CUT, 2)):
        data = jpeg(row)
        uri_ids[row], offsets[row], lengths[row] = uri_id, 0, len(data)
        Path(uris[2]).write_bytes(data[:-10])
    whole = bytearray(Path(uris[0]).read_bytes())
    whole[int(offsets[FLIPPED] + lengths[FLIPPED] // 2)] ^= 1
    Path(uris[0]).write_bytes(whole)
    schema = pa.schema([("id", pa.int64()), ("image", pa.large_binary())])
    source = Source("default.frames", "00000000-0000-0000-0000-000000000001", 3, str(folder), roots=(str(folder),))
    return RowIndex(
        source, schema, np.arange(N) + 1000, {"id": pa.array(range(N))}, {"image": BlobRefs(uris, uri_ids, offsets, lengths)}
    )


def make(index: RowIndex, **options: Any) -> Maker:
    return Maker(index, "fork", **{"batch_size": 12, "decode": {"image": Image()}, "verify": True, "seed": 4, **options})


def reports(ranks: Sequence[Loader]) -> list[list[Any]]:
    """Of each step, from all ranks."""
    steps = zip(*([batch["_bad"] for batch in rank] for rank in ranks), strict=True)
    return [[report for part in step for report in part] for step in steps]


@pytest.mark.parametrize("on_error", ["skip", "null"])
def test_each_fault_is_reported_with_row_column_uri_range_and_cause(index: RowIndex, on_error: str) -> None:
    loader = make(index, on_error=on_error)()
    batches = list(loader)
    found = {report["row"] - 1000: report for batch in batches for report in batch["_bad"]}
    assert set(found) == BAD
    for i, report in found.items():
        ref = index.blobs("image")[i]
        expected = (None, None, None) if ref is None else (ref.uri, ref.offset, ref.length)
        assert (report["column"], report["uri"], report["offset"], report["length"]) == ("image", *expected)
        assert report["cause"].startswith(CAUSES[i])
        assert len(report["cause"]) > 20
    assert "crc32" in found[FLIPPED]["cause"]
    assert "No such file" in found[ELSEWHERE_GONE]["cause"]
    rows = [i for batch in batches for i in batch["id"].tolist()]
    assert sorted(rows) == [i for i in range(N) if on_error == "null" or i not in BAD]
    for batch in batches:
        ok = batch["image_ok"].tolist() if on_error == "null" else [True] * len(batch["id"])
        for i, good, image in zip(batch["id"].tolist(), ok, batch["image"].numpy(), strict=True):
            assert good == (i not in BAD)
            assert np.array_equal(image, Image()(PNG.getvalue() if i == 5 else jpeg(i)) if good else np.zeros_like(image))
    assert loader.stats.reasons == {"DecodeError": len(STORED), "FetchError": 3}


@pytest.mark.parametrize("row", sorted(BAD))
@pytest.mark.parametrize("workers", [0, 1])
def test_raise_stops_at_the_row_and_names_it(index: RowIndex, row: int, workers: int) -> None:
    one = make(index.take(range(row, row + 1)), batch_size=1)(workers=workers)
    kind = FetchError if CAUSES[row].startswith("Fetch") else DecodeError
    with pytest.raises(kind, match=rf"default.frames@3 row {1000 + row} column image") as caught:
        list(one)
    ref = index.blobs("image")[row]
    assert ref is None or f"({ref.uri} {ref.offset}+{ref.length})" in str(caught.value)


@pytest.mark.parametrize("on_error", ["skip", "null"])
def test_rows_and_reports_are_the_same_on_any_topology_and_after_every_step(index: RowIndex, on_error: str) -> None:
    # With a size: a rank that has nothing but bad rows in a step can't know from them how large their zeros are.
    maker = make(index, on_error=on_error, decode={"image": Image(size=(24, 32))})
    assert_elastic(maker, worlds=(1, 2, 3, 4, 6, 12), workers=(0,))
    assert_elastic(maker, worlds=(2,), workers=(1, 3))
    assert_resumable(maker, topologies=[(1, 0), (2, 0), (3, 0), (1, 2)])
    expected = reports([maker()])
    assert sum(map(len, expected)) == len(BAD)
    single, states = maker(), []
    for _ in single:
        states.append(stored(single.state_dict()))
    for done, (world, workers) in enumerate([(1, 0), (2, 2), (3, 0), (12, 0)], 1):
        ranks = [maker(rank=rank, world=world, batch_size=12 // world, workers=workers) for rank in range(world)]
        assert reports(ranks) == expected, (world, workers)
        for one in ranks:
            one.load_state_dict(states[done - 1])
        assert reports(ranks) == (expected[done:] if done < len(expected) else reports_of_next_epoch(maker))


def reports_of_next_epoch(maker: Maker) -> list[list[Any]]:
    loader = maker()
    loader.dataset.set_epoch(1)
    return reports([loader])


def test_the_budget_is_a_ranks_own_in_each_epoch_and_begins_anew_with_a_resume(index: RowIndex) -> None:
    maker = make(index, on_error="skip", max_bad=len(BAD) - 1)
    one = maker()
    with pytest.raises(BadRowLimitError):
        list(one)
    state = stored(one.state_dict())  # behind the last batch that was handed over
    json.dumps(state)
    resumed = maker()
    resumed.load_state_dict(state)
    left = reports([resumed])
    assert 0 < sum(map(len, left)) < len(BAD)
    of_ranks = [reports([make(index, on_error="skip")(rank=rank, world=2, batch_size=6)]) for rank in (0, 1)]
    counts = [sum(map(len, steps)) for steps in of_ranks]
    assert sum(counts) == len(BAD)
    for rank, count in enumerate(counts):
        reports([make(index, on_error="skip", max_bad=count)(rank=rank, world=2, batch_size=6)])
        if count:
            with pytest.raises(
                BadRowLimitError, match=f"{count} bad rows in this epoch, max_bad allows {count - 1} of this rank's 24"
            ):
                reports([make(index, on_error="skip", max_bad=count - 1)(rank=rank, world=2, batch_size=6)])


def test_without_verify_the_flipped_byte_may_pass_and_nothing_else_changes(index: RowIndex) -> None:
    checked, unchecked = (
        {r["row"] for step in reports([make(index, on_error="skip", verify=v)()]) for r in step} for v in (True, False)
    )
    assert checked - unchecked <= {1000 + FLIPPED}
    assert unchecked <= checked


def raising(batch: Any, rngs: Any) -> Any:
    if 17 in batch["id"].tolist():
        raise DecodeError("what the user's own line raised")
    return batch


@pytest.mark.parametrize("on_error", ["raise", "skip", "null"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_in_a_transform_stops_under_every_policy(index: RowIndex, on_error: str, workers: int) -> None:
    good = index.take([i for i in range(N) if i not in BAD])
    one = make(good, on_error=on_error, transform=raising, shuffle=None, batch_size=4)(workers=workers)
    batches = iter(one)
    taken = len(list(islice(batches, 3)))
    with pytest.raises(LakehouseError, match="transform stopped by DecodeError: what the user's own line raised"):
        next(batches)
    assert (taken, one.state_dict()["position"]) == (3, 12)


def test_a_directory_in_the_place_of_a_file_is_a_bad_row(tmp_path: Path) -> None:
    refs = BlobRefs((str(tmp_path / "folder"),), np.zeros(2, np.int32), np.zeros(2, np.int64), np.array([5, -1]))
    (tmp_path / "folder").mkdir()
    source = Source("default.frames", "u", 3, str(tmp_path))
    index = RowIndex(source, pa.schema([("data", pa.large_binary())]), np.arange(2), {}, {"data": refs})
    (batch,) = Dataset(index, batch_size=2, rank=0, world=1, on_error="null")
    assert batch["data"] == [None, None]
    assert all("folder" in report["uri"] for report in batch["_bad"])
