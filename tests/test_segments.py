"""Memory that worker processes lend: never rewritten while anything shows it, given back always, bounded."""

from __future__ import annotations

import gc
import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from lakehouse.dataset import segments
from lakehouse.dataset.memory import Memory
from lakehouse.dataset.segments import Arrived, Lender
from lakehouse.dataset.wire import Small, pack, unpack
from lakehouse.decode import Image
from lakehouse.errors import LakehouseError
from lakehouse.index import RowIndex
from lakehouse.loader import Loader
from tests.training import Maker, image_index, same

METHODS = ("fork", "forkserver", "spawn")
HEIGHT, WIDTH = 96, 128  # batches of 4: 147 KB


def loader(index: RowIndex, workers: int = 2, method: str = "fork", **options: Any) -> Loader:
    return Maker(index, method, **{"batch_size": 4, "decode": {"image": Image()}, **options})(workers=workers)


def pictures(tmp_path: Path, n: int) -> RowIndex:
    return image_index(tmp_path, n, lambda _: (HEIGHT, WIDTH))


def mapped() -> int:
    """Lent segments that this process has mapped."""
    gc.collect()
    return sum("/memfd:lakehouse" in line for line in Path("/proc/self/maps").read_text().splitlines())


def sent(loan: object) -> Arrived:
    arrived = ForkingPickler.loads(ForkingPickler.dumps(loan))
    assert isinstance(arrived, Arrived)
    return arrived


# ---- one segment's life


def filled(lender: Lender, value: int, size: int = 100_000) -> torch.Tensor:
    tensor = torch.from_numpy(lender.array(size))
    tensor[:] = value
    return tensor


def test_a_segment_is_used_again_once_the_last_view_is_let_go() -> None:
    lender = Lender("one")
    made = filled(lender, 1)
    arrived = sent(lender.lend(made)).tensor()
    del made
    view = arrived[5:50].view(3, 15)
    second = sent(lender.lend(filled(lender, 2))).tensor()
    assert (arrived == 1).all()
    assert (second == 2).all()
    assert len(lender._segments) == 2
    del arrived
    third = sent(lender.lend(filled(lender, 3))).tensor()
    assert (view == 1).all()  # still shown: not touched
    assert len(lender._segments) == 3
    del view
    fourth = sent(lender.lend(filled(lender, 4))).tensor()
    assert len(lender._segments) == 3
    assert [int(tensor[0]) for tensor in (second, third, fourth)] == [2, 3, 4]
    segments.forget("one")


def test_what_the_worker_still_holds_or_nobody_took_is_not_lost() -> None:
    lender = Lender("two")
    kept = filled(lender, 1)  # such as a transform's own, for the next batch
    del kept
    first = filled(lender, 1)
    assert len(lender._segments) == 1
    arrived = sent(lender.lend(first)).tensor()
    del arrived
    filled(lender, 2)  # `first` is alive here: another segment
    assert len(lender._segments) == 2
    assert (first == 1).all()
    del first
    unwanted = sent(lender.lend(filled(lender, 3)))
    del unwanted
    filled(lender, 4)
    assert len(lender._segments) == 2
    segments.forget("two")


def test_one_tensor_lent_twice_is_two_loans_and_other_layouts_are_copied() -> None:
    lender = Lender("three")
    made = filled(lender, 7)
    one, other = sent(lender.lend(made)).tensor(), sent(lender.lend(made)).tensor()
    assert one.data_ptr() != other.data_ptr()
    del one, made
    filled(lender, 9)
    assert (other == 7).all()
    turned = torch.from_numpy(lender.array(120_000)).view(200, 600).t()
    turned.copy_(torch.arange(120_000).view(600, 200) % 251)
    assert torch.equal(sent(lender.lend(turned)).tensor(), turned)
    floats = torch.arange(30_000, dtype=torch.float32).view(100, 300)
    arrived = sent(lender.lend(floats)).tensor()
    assert arrived.dtype is torch.float32
    assert torch.equal(arrived, floats)
    segments.forget("three")


def test_sizes_that_take_turns_keep_their_segments_and_old_sizes_go_back_to_the_system() -> None:
    lender = Lender("four")
    before = mapped()
    for _ in range(30):
        for size in (100_000, 300_000, 900_000):
            tensor = sent(lender.lend(filled(lender, 1, size))).tensor()
            assert tensor.numel() == size
    assert len(lender._segments) == 3
    del tensor
    for _ in range(30):
        sent(lender.lend(filled(lender, 1, 5_000_000))).tensor()
    assert len(lender._segments) == 1
    assert mapped() - before <= 2  # on both sides
    segments.forget("four")
    del lender
    assert mapped() == before


def test_what_one_burst_needed_goes_back_to_the_system() -> None:
    lender = Lender("burst")
    before = mapped()
    burst = [sent(lender.lend(filled(lender, 1))).tensor() for _ in range(20)]
    assert mapped() - before == 40
    del burst
    for _ in range(100):
        sent(lender.lend(filled(lender, 1))).tensor()
    assert len(lender._segments) <= 2
    assert mapped() - before <= 4
    segments.forget("burst")


def test_a_forked_child_keeps_what_it_sees() -> None:
    lender = Lender("five")
    arrived = sent(lender.lend(filled(lender, 1))).tensor()
    reader, writer = os.pipe()
    ready, go = os.pipe()
    seen = arrived.numpy()  # torch's threads do not follow a fork
    pid = os.fork()
    if not pid:
        os.read(ready, 1)  # until the parent has let go and the worker went on
        os.write(writer, bytes([int((seen == 1).all())]))
        os._exit(0)
    del seen
    del arrived
    for value in range(2, 6):
        sent(lender.lend(filled(lender, value))).tensor()
    os.write(go, b"x")
    assert os.read(reader, 1) == b"\1"
    os.waitpid(pid, 0)
    for end in (reader, writer, ready, go):
        os.close(end)
    segments.forget("five")


def test_threads_never_get_one_segment_twice() -> None:
    lender = Lender("six")
    wrong = []

    def work(value: int) -> None:
        for _ in range(300):
            tensor = filled(lender, value)
            arrived = sent(lender.lend(tensor)).tensor()
            del tensor
            if not (arrived == value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(lender._segments) <= 8
    segments.forget("six")


def test_nested_batches_travel_as_they_were() -> None:
    segments.lend_to("seven")
    memory = Memory("lent")
    batch = {
        "pair": (torch.arange(100_000), {"small": torch.arange(3), "none": None}),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(True),
        "long": torch.arange(40_000, dtype=torch.float64).view(2, -1)[:, ::2],
        "list": [torch.ones(50_000), None, torch.zeros(2, 2)],
        "bytes": [b"a" * 70_000, None, b""],
        "text": ["a", None],
        "learned": torch.ones(2, requires_grad=True),
    }
    arrived = ForkingPickler.loads(ForkingPickler.dumps(pack(batch, memory)))
    assert isinstance(arrived["scalar"], Small)
    assert same(unpack(arrived), batch)
    segments.forget("seven")


class Pair(NamedTuple):
    image: Any
    rest: Any


@dataclass(eq=False)
class Sample:
    image: torch.Tensor
    names: list[str]


def through_the_wire(batch: object) -> Any:
    return unpack(ForkingPickler.loads(ForkingPickler.dumps(pack(batch, Memory("lent")))))


def test_tensors_inside_of_other_values_are_lent_too() -> None:
    segments.lend_to("eight")
    before = mapped()
    large = torch.arange(100_000.0)
    got = through_the_wire(Pair(Sample(large, ["a"]), [[large, large.int()], {"x": [large]}]))
    assert isinstance(got, Pair)
    assert isinstance(got.image, Sample)
    assert got.image.names == ["a"]
    assert torch.equal(got.image.image, large)
    assert torch.equal(got.rest[0][1], large.int())
    assert got.rest[1]["x"][0] is got.image.image  # as it was
    assert mapped() - before == 4  # two tensors, on both sides
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")]
    del got
    assert through_the_wire({(1, 2): large})[1, 2].sum() == large.sum()
    assert len(segments.lender()._segments) == 2  # used again
    segments.forget("eight")


def quantized(n: int) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.arange(float(n)), 0.5, 10, torch.quint8)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch: quantized tensors are on their way out, nested a prototype
def test_tensors_that_are_more_than_memory_arrive_as_they_were() -> None:
    segments.lend_to("nine")
    for n in (3, 100_000):
        turned = torch.complex(torch.arange(float(n)), torch.ones(n)).conj()
        assert torch.equal(through_the_wire(turned), turned.resolve_conj())
        assert torch.equal(through_the_wire([turned])[0], turned.resolve_conj())
        assert torch.equal(through_the_wire(turned.imag), -torch.ones(n))
        for got in (through_the_wire(quantized(n)), through_the_wire([quantized(n)])[0]):
            assert got.q_scale() == 0.5
            assert torch.equal(got.int_repr(), quantized(n).int_repr())
        ragged = torch.nested.nested_tensor([torch.ones(n), torch.zeros(2)])
        assert [len(part) for part in through_the_wire(ragged).unbind()] == [n, 2]
    assert torch.equal(through_the_wire(torch.eye(3).to_sparse()).to_dense(), torch.eye(3))
    segments.forget("nine")


def test_a_tensor_has_no_memory_but_its_own() -> None:
    lender = Lender("ten")
    sent(lender.lend(filled(lender, 1, 120_000))).tensor()
    shorter = sent(lender.lend(filled(lender, 2, 100_000))).tensor()
    assert len(lender._segments) == 1
    assert shorter.untyped_storage().nbytes() == 100_000  # what torch.save writes
    segments.forget("ten")


def test_what_could_not_be_sent_is_not_lent() -> None:
    segments.lend_to("eleven")
    large = torch.arange(100_000.0)
    never = (value for value in "never")
    opened = []
    for _ in range(10):
        for batch in (
            {"a": large, "b": never},  # the loan is on no way yet
            {"a": [large, None], "b": [large, never]},  # one of the two is written already
            {"a": Pair(large, large.int()), "b": never},  # all are
        ):
            with pytest.raises(LakehouseError, match="can't hand over"):
                pack(batch, Memory("lent"))
        gc.collect()
        opened.append(len(os.listdir("/proc/self/fd")))
    assert len(segments.lender()._segments) <= 3
    assert opened[-1] <= opened[0] + 2  # the thread that hands files over may not have closed the last ones yet
    for value in (1.0, 2.0):
        got = through_the_wire({"a": large * value, "b": Pair(large * value, [large])})  # the same ones
        assert torch.equal(got["a"], large * value)
        assert torch.equal(got["b"].image, large * value)
        del got
    assert len(segments.lender()._segments) <= 3
    segments.forget("eleven")


# ---- a loader's workers


def unsendable(batch: dict[str, Any], _: Any) -> Any:
    return {**batch, "late": (row for row in batch["id"])}


@pytest.mark.parametrize("wrap", [lambda batch: batch, lambda batch: [batch]])
def test_what_cannot_be_sent_is_an_error_and_no_hang(tmp_path: Path, wrap: Any) -> None:
    index = pictures(tmp_path, 8)
    many = loader(index, 1, transform=lambda batch, rngs: wrap(unsendable(batch, rngs)))
    with pytest.raises(LakehouseError, match="can't hand over a value of type .*cannot pickle 'generator' object"):
        next(iter(many))


@pytest.mark.parametrize("method", METHODS)
def test_batches_that_are_kept_stay_as_they_were(tmp_path: Path, method: str) -> None:
    index = pictures(tmp_path, 80)
    many, single = loader(index, 2, method), loader(index, 0)
    for _ in range(2):
        got, expected = list(many), list(single)
        assert all(same(a, b) for a, b in zip(got, expected, strict=True))
        assert mapped() >= len(got)


def doubled(batch: dict[str, Any], _: Any) -> Any:
    """One tensor twice, a part of it turned, and a value that one may write to."""
    return batch["image"], {"again": batch["image"], "turned": batch["image"].transpose(1, 2)[:, ::2], "id": batch["id"]}


def test_a_transforms_own_shapes(tmp_path: Path) -> None:
    index = pictures(tmp_path, 40)
    got = list(loader(index, 2, transform=doubled))
    assert all(same(a, b) for a, b in zip(got, loader(index, 0, transform=doubled), strict=True))
    got[0][0][:] = 0
    assert got[0][1]["again"].any()


def test_few_segments_serve_many_epochs_broken_off_ones_too(tmp_path: Path) -> None:
    index = pictures(tmp_path, 96)
    before = mapped()
    many = loader(index, 2, prefetch_bytes=1 << 20)
    counts = []
    for epoch in range(20):
        for number, batch in enumerate(many):
            assert batch["image"].shape == (4, HEIGHT, WIDTH, 3)
            if epoch % 2 and number == 5:
                break
        counts.append(mapped() - before)
    # What is in flight: 2 a worker ready, 1 MiB being made, and one with the trainer.
    assert max(counts) <= 2 * (2 + 8) + 1
    assert max(counts[10:]) <= max(counts[:10]) + 2
    del batch, many
    assert mapped() == before


def test_dev_shm_is_not_used(tmp_path: Path) -> None:
    index = pictures(tmp_path, 64)
    before = set(os.listdir("/dev/shm"))
    kept = list(loader(index, 2, "forkserver"))
    assert len(kept) == 16
    assert not [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("torch")]


def test_killed_workers_leave_what_was_delivered(tmp_path: Path) -> None:
    index = pictures(tmp_path, 200)
    expected = next(iter(loader(index, 0)))
    many = loader(index, 2, "forkserver")
    batches = iter(many)
    first = next(batches)
    for worker in many._torch_loader._iterator._workers:  # type: ignore[union-attr]
        os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(LakehouseError, match="most often killed for its memory"):
        list(batches)
    assert same(first, expected)
    assert np.asarray(first["image"]).sum() > 0
