"""Dataset: the rows of an index as torch batches.

    index ──order, shard──> rows ──fetch──> bytes ──decode──> values ──> batch

| module   | idea                                                                     |
|----------|--------------------------------------------------------------------------|
| dataset  | `Dataset` itself: options, epochs, processes, state                      |
| batches  | one iteration over a `Dataset`, without a `Loader`                       |
| map_style| `MapDataset`: rows by number                                             |
| options  | checks of what `Dataset` is given                                        |
| selection| what is read of an index, and how; what one process reads with           |
| steps    | one step: rows to batch                                                  |
| columns  | scalar columns: Arrow to tensors and lists                               |
| blobs    | a BLOB column as one process sees it                                     |
| blob_step| one step of it: byte ranges to values                                    |
| placed   | rows decoded straight into their places in the batch's array             |
| stack    | decoded values to one tensor or list                                     |
| badrows  | what is reported about bad rows, and how many are tolerated              |
| pipeline | threads, order of delivery, bound of the bytes in flight                 |
| memory   | where arrays live: reused, shared or pinned                              |
| segments | memory that worker processes lend to the trainer's                       |
| stage    | stages by name in profiles                                               |
| state    | saved states, and the start that worker processes read                   |
| orphan   | worker processes end with their trainer                                  |
| wire     | how a batch travels from a worker process                                |
"""

from lakehouse.dataset.batches import Batches
from lakehouse.dataset.dataset import Dataset
from lakehouse.dataset.map_style import MapDataset
from lakehouse.dataset.steps import RowRngs

__all__ = ["Batches", "Dataset", "MapDataset", "RowRngs"]
