"""One epoch's order of blocks, and the windows that they make."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lakehouse.order.permutations import FOR_BLOCKS, Ints, Permutation, bits, permutation


@dataclass(frozen=True, eq=False)
class Blocks:
    """One epoch's order of blocks, and its windows.

    ::

        slot      0  1  2  ...  63 | 64 ... 127 | ... | last but one  |  last        slot: place of a block in the order
        window           0         |     1      | ... | these two share what is left

    The full blocks are permuted; the short one, if any, is put in at a random slot, which needs no inverse permutation to find.
    """

    block_rows: int
    window_blocks: int
    full: int  # blocks of block_rows rows
    missing: int  # rows that the short block lacks; 0: there is none
    short_slot: int  # where the short block stands; past the end: there is none
    last: int  # number of the last window
    last_slot: int  # where that begins
    permute: Permutation  # full blocks

    @staticmethod
    def of(n: int, seed: int, epoch: int, block_rows: int, window_blocks: int) -> Blocks:
        """Those of an order of ``n`` rows."""
        full, short = divmod(n, block_rows)
        slots = full + (short > 0)
        source = bits(FOR_BLOCKS, seed, epoch)
        # 64 bits modulo the slots: uneven by less than slots / 2**64.
        short_slot = int(source.random_raw()) % slots if short else slots
        last = max(-(-slots // window_blocks) - 1, 0)
        shared = max(last - 1, 0) * window_blocks  # slots before the last two windows
        return Blocks(
            block_rows=block_rows,
            window_blocks=window_blocks,
            full=full,
            missing=block_rows - short if short else 0,
            short_slot=short_slot,
            last=last,
            last_slot=shared + (slots - shared + 1) // 2 if last else 0,
            permute=permutation(full, source),
        )

    @property
    def slots(self) -> int:
        """Blocks, the short one counted."""
        return self.full + (self.missing > 0)

    def window_at(self, position: int) -> tuple[int, int]:
        """The number of the window that holds a position, and its first position."""
        # Until the short block, slots are block_rows long; from there on everything is early by the rows it lacks.
        early = self.missing if position >= self.short_slot * self.block_rows else 0
        slot = (position + early) // self.block_rows
        number = self.last if slot >= self.last_slot else min(slot // self.window_blocks, self.last - 1)
        first_slot = self._first_slot(number)
        return number, first_slot * self.block_rows - (self.missing if first_slot > self.short_slot else 0)

    def blocks(self, number: int) -> Ints:
        """The numbers of a window's blocks."""
        end = self.slots if number == self.last else self._first_slot(number + 1)
        slots = np.arange(self._first_slot(number), end, dtype=np.int64)  # [blocks]
        is_full = slots != self.short_slot  # [blocks]
        numbers = np.full(len(slots), self.full, np.int64)  # [blocks] the short block comes after the full ones
        numbers[is_full] = self.permute(slots[is_full] - (slots[is_full] > self.short_slot))
        return numbers

    def _first_slot(self, number: int) -> int:
        return self.last_slot if number == self.last else number * self.window_blocks
