"""What each order costs storage and gives training, for a table stored in label order: arithmetic alone, nothing is read.

Storage: distinct groups of 256 neighbouring rows ("blocks") in one batch of 64, and in 100 batches one after the other, which
is what a cache or a merged read can make use of. Training: rank correlation of place in the epoch and place in the table
(1: as stored, 0: none), and the mix of labels, as entropy over that of batches drawn at random (1: the same).

    python benchmarks/locality.py --rows 1000000 --labels 100
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import _bench

BATCH, STORED_BLOCK_ROWS, SEED = 64, 256, 7
# Shuffle, block_rows, window_blocks; 256 x 64 is the default, 32 x 64 that of rows of 150 KB, 4 x 64 of 1 MB.
ORDERS = (
    (None, 256, 64),
    ("blocks", 4, 64),
    ("blocks", 32, 64),
    ("blocks", 64, 16),
    ("blocks", 256, 4),
    ("blocks", 256, 16),
    ("blocks", 256, 64),
    ("blocks", 256, 256),
    ("blocks", 1024, 64),
    ("blocks", 1024, 256),
    ("blocks", 16, 1024),
    ("rows", 256, 64),
)


def entropy_bits(labels: Any, count: int) -> Any:
    """Of each batch: labels [batches, rows] -> [batches]."""
    shares = np.stack([np.bincount(row, minlength=count) for row in labels]) / labels.shape[1]
    return -np.sum(shares * np.log2(shares, where=shares > 0, out=np.zeros_like(shares)), axis=1)


def distinct(groups: Any) -> float:
    """Mean number of different values in a row of [n, k]."""
    ordered = np.sort(groups, axis=1)
    return float(np.mean(1 + np.count_nonzero(np.diff(ordered, axis=1), axis=1)))


def main() -> None:
    from lakehouse.order import Order

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--labels", type=int, default=100)
    args = parser.parse_args()
    _bench.header("locality against randomness", f"{args.rows:,} rows in order of {args.labels} labels", Path("none"))
    n = args.rows
    labels = np.arange(n) * args.labels // n
    batches = n // BATCH
    sampled = np.linspace(0, batches - 1, min(batches, 2_000)).astype(int)
    drawn = np.random.default_rng(0).integers(0, n, (len(sampled), BATCH))
    random_bits = entropy_bits(labels[drawn], args.labels).mean()
    print(
        f"\n{'order':<20}{'window rows':>12}{'blocks/batch':>14}{'blocks/100 batches':>20}"
        f"{'rank correlation':>18}{'label mix, mean':>17}{'worst batch':>13}{'us/batch':>10}"
    )
    for shuffle, block_rows, window_blocks in ORDERS:
        order = Order(n, SEED, shuffle, block_rows, window_blocks)
        start = time.perf_counter()
        steps = [order.rows(0, at, at + BATCH) for at in range(0, min(batches, 2_000) * BATCH, BATCH)]
        per_batch_us = (time.perf_counter() - start) / len(steps) * 1e6
        rows = order.rows(0, 0, n)
        whole = rows[: batches * BATCH].reshape(batches, BATCH)
        runs = whole[: batches // 100 * 100].reshape(-1, 100 * BATCH)
        bits = entropy_bits(labels[whole[sampled]], args.labels) / random_bits
        correlation = np.corrcoef(np.arange(n), rows)[0, 1]  # of two permutations: of ranks
        window = {"blocks": f"{min(n, block_rows * window_blocks):,}", "rows": f"{n:,}", None: "1"}[shuffle]
        print(
            f"{order.spec:<20}{window:>12}{distinct(whole[sampled] // STORED_BLOCK_ROWS):>14.1f}"
            f"{distinct(runs // STORED_BLOCK_ROWS):>20.0f}{correlation:>18.3f}{bits.mean():>17.3f}{bits.min():>13.3f}"
            f"{per_batch_us:>10.0f}"
        )


if __name__ == "__main__":
    main()
