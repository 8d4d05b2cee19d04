"""Sampling: several indexes by their shares, or one index by a weight of each row. Given to `Dataset` in place of an index.

    positions ──order──> part and draw ──the part's own order──> row ──> the part's columns, bytes and fetcher

| module  | idea                                                                             |
|---------|----------------------------------------------------------------------------------|
| mixture | `Mixture`: the rows of several indexes, one after the other, drawn by shares     |
| mixed   | its order: exact integer quotas, pure                                            |
| weighted| `Weighted`: one index, each row drawn as often as its weight says                |
| ends    | its order, pure, and the weights added up                                        |
| joined  | columns of several tables behind each other, each read by its own fetcher        |

Both are exact as a plain index is: what stands at a position depends on nothing but (seed, epoch, position), so any world and
number of workers gives the same global batches and a saved position is the whole state. Nothing is drawn at random row by
row: shares and weights are kept by arithmetic, to within one draw.
"""

from lakehouse.mixture.mixture import Mixture
from lakehouse.mixture.weighted import Weighted

__all__ = ["Mixture", "Weighted"]
