"""Memory of batches: what was let go is used again, and no more of it is kept than that needs."""

from __future__ import annotations

import pytest
import torch

from lakehouse.dataset import memory
from lakehouse.dataset.memory import Memory

KIB = 1024


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes that were asked of the system."""
    sizes: list[int] = []
    real = memory._mapped

    def mapped(size_bytes: int) -> memory.Bytes:
        sizes.append(size_bytes)
        return real(size_bytes)

    monkeypatch.setattr(memory, "_mapped", mapped)
    return sizes


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("columns", [(300,), (300, 900), (900, 300), (200, 400, 800, 1600)])
def test_columns_of_different_size_allocate_once(allocated: list[int], columns: tuple[int, ...], ahead: int) -> None:
    one = Memory()
    held: list[dict[int, torch.Tensor]] = []
    for number in range(50):
        batch = {size: one.tensor((size, KIB), torch.uint8) for size in columns}
        for size in columns:
            batch[size][:] = number
        held.append(batch)
        for at, old in enumerate(held, number + 1 - len(held)):
            assert all((old[size] == at).all() for size in columns)
        del held[:-ahead], batch, old
    assert sorted(allocated) == sorted(size * KIB for size in columns for _ in range(ahead + 1))


def test_blocks_of_sizes_that_are_no_longer_asked_for_are_let_go(allocated: list[int]) -> None:
    one = Memory()
    old = [one.tensor((300, KIB), torch.uint8) for _ in range(8)]
    del old
    assert len(one._free) == 8
    for _ in range(100):
        one.tensor((900, KIB), torch.uint8)
    assert [free.block.nbytes for free in one._free] == [900 * KIB]
