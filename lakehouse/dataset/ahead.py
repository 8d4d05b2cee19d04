"""Reads a window's bytes ahead of its steps, in the order in which they are stored.

A step's rows lie scattered over a window (`lakehouse.order`), so that alone it would cost a request a row. All rows of the
window together are nearly all rows of its blocks: a few long reads. The price is that a window's bytes, as stored, are held
until their rows are due.

    steps ──> groups: the steps of one window ──> sorted by place ──> chunks ──threads──> values ──> each step takes its own

Bytes held, and those of requests under way, stay below a share of ``max_bytes``: a later group's chunks are read as the rows
of the one before are taken. A larger window is read in several groups, with more requests and the same bytes.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lakehouse.dataset.ahead_group import Group, Name, joined, sizes_of
from lakehouse.dataset.memory import Trim
from lakehouse.dataset.pipeline import MAX_STEPS, Stop
from lakehouse.dataset.steps import Rows
from lakehouse.errors import FetchError, LakehouseError
from lakehouse.fetch import GAP_BYTES, LEAST_SPAN_BYTES, WASTE, BlobRefs, Fetched, Fetcher, FetchStats, answered, plan_spans

# One request where rows lie together, and it costs a store's server half as much a byte as four of 1 MiB; hundreds where they
# lie apart. Sixteen chunks at a time fill a connection of some gigabits.
_CHUNK_BYTES = LEAST_SPAN_BYTES
_THREADS = 16
SHARE = 0.75  # of the bytes in flight: those read ahead of the steps, where reads are merged
_LEAVING_S = 0.01  # within which the first step's requests are on their way
_IDLE_S = 0.2
_STEPS_KEPT = MAX_STEPS + 2  # in flight, the trainer's, and one that is looked at before it begins

# Where rows share so few requests that more of them at a time save nothing, and only make steps wait.
_SCATTERED_SHARE = 0.6
_SCATTERED_STEPS = 8


class _Sized(NamedTuple):
    rows: Rows
    bytes: int


class Ahead:
    """Announces steps before they begin, and is their fetcher.

    Args:
        fetcher: reads the bytes.
        columns: references of all rows of the index, by BLOB column.
        max_bytes: of all that is in flight. Of these, `SHARE` is for values that no step has taken yet and for what is being
            read; less where steps are so large that two of them, the trainer's and the next, need more than the rest. One
            step is always allowed.
        window_end: position to the end of its window; None: where there are none.
        hurried: the first step is read alone, a request a row, so that it comes long before its window.
        stop: ends its threads.
    """

    whole_steps = True

    def __init__(
        self,
        fetcher: Fetcher,
        columns: Sequence[Any],
        *,
        max_bytes: int,
        window_end: Callable[[int], int] | None,
        hurried: bool,
        stop: Stop,
    ) -> None:
        self.reads_by = type(fetcher).__name__  # whose mistakes its errors tell of
        self._fetcher = fetcher
        self._columns = columns
        # Columns of one list of uris: a uri may stand there twice, for two tables that read it with rights of their own.
        self._by_number = len({id(getattr(column, "uris", None)) for column in columns}) == 1
        self._max_bytes = max_bytes
        self._steps: deque[int] = deque()  # bytes of those drawn that may not have been let go, in order
        self._step_bytes = 0  # of the largest of them
        self._chunk_bytes = max(1, min(_CHUNK_BYTES, int(max_bytes * SHARE) // (4 * _THREADS)))
        self._window_end = window_end
        self._hurried = hurried
        self._stop = stop
        self._trim = Trim(max_bytes)  # seldom: a window is held long, so that all of it would come and go
        self._lock = threading.Lock()
        # Two, since each step that takes its values would otherwise wake all threads that read, only to look and wait again.
        self._arrived = threading.Condition(self._lock)  # values, or an error
        self._room = threading.Condition(self._lock)  # for a chunk, or a chunk for the room
        self._groups: deque[Group] = deque()  # not all taken yet, in order
        self._held_bytes = 0  # there and not taken, and twice what is being read: its values are cut out of it
        self._threads: list[threading.Thread] = []

    @property
    def _own_bytes(self) -> int:
        """What may be held here, reads under way included."""
        return min(int(self._max_bytes * SHARE), self._max_bytes - 2 * self._step_bytes)

    def announced(self, steps: Iterator[Rows]) -> Iterator[Rows]:
        """The same steps; reading of those that follow begins before each is given out."""
        upcoming: deque[deque[Rows]] = deque()
        waiting: deque[_Sized] = deque()
        first = self._hurried
        begun = 0
        while True:
            wanted = 1 if first else 2  # what steps are drawn from, and what comes next
            while len(upcoming) < wanted:
                members = self._next_members(steps, waiting, only_one=first)
                if not members:
                    break
                self._begin(members, is_first=first)
                first = False
                upcoming.append(members)
            if not upcoming:
                return
            yield upcoming[0].popleft()
            begun += 1
            if begun > _STEPS_KEPT:
                self._forget_step()
            if not upcoming[0]:
                upcoming.popleft()
            self._let_first_leave()

    def _forget_step(self) -> None:
        """The oldest one has been let go: one that was large takes no room from those that follow."""
        if self._steps.popleft() == self._step_bytes:
            self._step_bytes = max(self._steps, default=0)

    def _let_first_leave(self) -> None:
        """A moment for the first step's requests: to plan what follows would take the time in which they leave."""
        with self._lock:
            if self._groups and self._groups[0].is_urgent and not self._stop.asked:
                self._arrived.wait(_LEAVING_S)

    def _next_members(self, steps: Iterator[Rows], waiting: deque[_Sized], *, only_one: bool) -> deque[Rows]:
        """Steps to be read together: of one window, as many as may be held.

        At first a single one, so that the first batch waits for no other. And few where reading more at a time would not
        save requests: the group's first step waits for its last row.
        """
        count = total_bytes = 0
        end: int | None = None
        while not (only_one and count):
            if count == len(waiting):
                following = next(steps, None)
                if following is None:
                    break
                refs = [column.take(following.rows) for column in self._columns]
                waiting.append(_Sized(following, sum(int(sizes_of(part).sum()) for part in refs)))
                self._steps.append(waiting[-1].bytes)
                self._step_bytes = max(self._step_bytes, waiting[-1].bytes)
            rows, size = waiting[count]
            start = int(rows.positions[0])
            most_bytes = self._own_bytes - _THREADS * self._chunk_bytes
            if count and (total_bytes + size > most_bytes or (end is not None and start >= end)):
                break
            if end is None and self._window_end is not None:
                end = self._window_end(start)
            total_bytes += size
            count += 1
        if count > _SCATTERED_STEPS and self._are_scattered([waiting[i].rows for i in range(count)]):
            count = _SCATTERED_STEPS
        return deque(waiting.popleft().rows for _ in range(count))

    def _parts(self, members: Sequence[Rows]) -> list[BlobRefs]:
        """Their ranges, column by column, but not those of columns where lengths are unknown: nothing would bound them."""
        chosen = np.concatenate([rows.rows for rows in members])
        parts = [column.take(chosen) for column in self._columns]
        return [part for part in parts if not np.any((part.lengths < 0) & (part.uri_ids >= 0))]

    def _are_scattered(self, members: Sequence[Rows]) -> bool:
        refs = joined(self._parts(members), same_uris=self._by_number)
        uri_ids = np.where(refs.impossible, -1, refs.uri_ids)  # each will be an error of its own
        # What is longer than a chunk shares no request, and counts as one: a wrong length would be planned as billions.
        lengths = np.minimum(refs.lengths, self._chunk_bytes)
        plan = plan_spans(uri_ids, refs.offsets, lengths, gap_bytes=GAP_BYTES, span_bytes=self._chunk_bytes, waste=WASTE)
        return len(plan.lengths) > _SCATTERED_SHARE * len(refs)

    def _begin(self, members: Sequence[Rows], *, is_first: bool) -> None:
        parts = self._parts(members)
        stops = np.cumsum([len(rows.rows) for rows in members]).tolist()
        slices = [part.slice(start, stop) for part in parts for start, stop in zip([0, *stops], stops, strict=False)]
        group = Group(
            joined(parts, same_uris=self._by_number),
            [self._name(one) for one in slices],
            [len(one) for one in slices],
            self._chunk_bytes,
            is_first=is_first,
        )
        if not group.chunks:
            return  # nothing to read
        with self._lock:
            self._groups.append(group)
            self._room.notify(len(group.chunks))
            wanted = min(_THREADS, len(self._threads) + len(group.chunks))
        while len(self._threads) < wanted:
            thread = threading.Thread(target=_serve, args=(weakref.ref(self),), name="lakehouse-ahead", daemon=True)
            self._threads.append(thread)
            thread.start()

    # --- reading -------------------------------------------------------------------------------------------------------

    def work(self) -> bool:
        """Read one chunk, or wait a moment for one; False: it is over."""
        with self._lock:
            task = self._next_chunk()
            if task is None:
                if not self._stop.asked:
                    self._room.wait(_IDLE_S)
                return not self._stop.asked
        group, rows, size = task
        self._trim.before(size, len(rows))
        began_s = time.perf_counter()
        values: Sequence[Any] = ()
        stats = FetchStats()
        error: BaseException | None = None
        try:
            fetched = answered(self._fetcher.fetch(group.refs.take(rows)), len(rows), self.reads_by)
            values, stats = fetched.values, fetched.stats
        except BaseException as caught:  # noqa: BLE001 - raised where the values are waited for
            error = caught
        with self._lock:
            was_urgent = group.is_urgent
            group.reading -= 1
            self._held_bytes -= size
            if error is not None or group.error is not None:  # its steps read by themselves from then on
                group.error = group.error or error
                self._held_bytes -= size
            else:
                group.add(rows, values, stats, time.perf_counter() - began_s)
            self._arrived.notify_all()
            if error is not None or (was_urgent and not group.is_urgent):
                self._room.notify_all()
            elif any(other.chunks for other in self._groups):
                self._room.notify()  # beside this thread: what was read is there once now, not twice
        return True

    def _next_chunk(self) -> tuple[Group, Any, int] | None:
        """Call with the lock held."""
        for number, group in enumerate(self._groups):
            if group.error is None and group.chunks:
                rows, size = group.chunks[0]
                needed = number == 0 and not group.reading  # a step waits for it
                if not needed and self._held_bytes + 2 * size > self._own_bytes:
                    return None
                group.chunks.popleft()
                group.reading += 1
                self._held_bytes += 2 * size
                return group, rows, size
            if group.is_urgent:  # nothing else is read beside what the first batch waits for
                return None
        return None

    def _name(self, refs: BlobRefs) -> Name:
        """What tells the ranges of one step from those of others."""
        uris: Any = refs.uri_ids.astype(np.int64, copy=False).tobytes()
        if not self._by_number:
            uris = tuple(None if uri_id < 0 else refs.uris[uri_id] for uri_id in refs.uri_ids.tolist())
        return uris, refs.offsets.tobytes(), refs.lengths.tobytes()

    # --- a step's own --------------------------------------------------------------------------------------------------

    def fetch(self, refs: BlobRefs) -> Fetched:
        """What was read ahead, waited for where need be; anything else is read now."""
        name = self._name(refs)
        mistake: BaseException | None = None
        with self._lock:
            group = next((group for group in self._groups if group.holds(name)), None)
            if group is not None:
                while group.error is None and not self._stop.asked and not group.has(name):
                    self._arrived.wait(_IDLE_S)
                if self._stop.asked:  # nobody takes them any more
                    return Fetched([FetchError("the iteration has ended")] * len(refs), FetchStats())
                if group.error is not None and not isinstance(group.error, Exception):
                    raise group.error  # SystemExit and the like
                found = group.has(name)
                values, taken_bytes = group.take(name)
                self._held_bytes -= taken_bytes
                if not group.left:
                    self._groups.remove(group)
                    self._room.notify_all()  # a chunk of the next one is read, whatever is held
                elif any(other.chunks for other in self._groups):
                    self._room.notify()
                if found:
                    return Fetched(values, group.share(values, taken_bytes))
                # A fetcher of the user's own raised for a whole call: which of its ranges is bad, or which one shows its
                # mistake, is found out by the step.
                if not group.left and not isinstance(group.error, LakehouseError):
                    mistake = group.error  # not lost, should it not show again
        fetched = self._fetcher.fetch(refs)
        if mistake is not None:
            raise mistake
        return fetched


def _serve(owner: weakref.ref[Ahead]) -> None:
    """A thread's life; an `Ahead` that was dropped ends it."""
    while (ahead := owner()) is not None and ahead.work():
        del ahead
