"""Runs steps ahead of the trainer, in threads, bounded in bytes, and hands them over strictly in order.

::

    plan ──> start ──> [ tasks: fetch, decode ] ──> finish (one at a time, in step order) ──> next()
             consumer     io and cpu threads          whichever thread ends the step's last task      consumer

    in flight: started and not yet handed over. Their bytes (referenced + decoded) and those of the step handed over last,
    which the trainer holds, stay below ``max_bytes``; one step in flight is always allowed, however large.

Threads belong to one iteration. They are daemons, but nothing relies on that: `Pipeline.close` stops and joins them, and
every pipeline that is still open is closed before the interpreter takes its modules apart.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Generic, Literal, Protocol, TypeVar

from lakehouse.errors import LakehouseError

Lane = Literal["cpu", "io", "quick"]
Task = Callable[[], None]
Spawn = Callable[[Lane, Task], None]

MAX_STEPS = 32  # in flight
_QUICK_STEPS = 4  # read ahead where reading takes no time
# Many steps in flight are topped up a few at a time: after a picture has passed through the caches, the first step to be
# started takes three times as long as those right behind it.
_TOP_UP_SHARE = 2
_JOIN_SECONDS = 5.0  # a read that hangs does not hold up the trainer's exit; its thread is a daemon


class Stop:
    """Asks running tasks to end early; looked at between rows.

    Attributes:
        asked: the iteration is over.
        at_end: and all its steps were handed over.
    """

    __slots__ = ("asked", "at_end")

    def __init__(self) -> None:
        self.asked = self.at_end = False


class Work(Protocol):
    """One step."""

    def cost_bytes(self) -> int | None:
        """Bytes that the step holds while it is in flight; None while that can't be told."""
        ...

    def start(self, spawn: Spawn) -> None:
        """Hands out the step's tasks. A task may spawn more of them."""
        ...

    def finish(self) -> None:
        """Runs once all tasks are done, for one step at a time and in step order."""
        ...


W = TypeVar("W", bound=Work)


class _Job(Generic[W]):
    __slots__ = ("done", "error", "left", "order", "work")

    def __init__(self, work: W) -> None:
        self.work = work
        self.left = 1  # tasks not yet done; the one is `start` itself
        self.order = 0  # tasks handed out so far
        self.error: tuple[int, BaseException] | None = None  # of the first task handed out that failed
        self.done = False

    def fail(self, order: int, error: BaseException) -> None:
        if self.error is None or order < self.error[0]:
            self.error = (order, error)


class Pipeline(Generic[W]):
    """An iterator of finished steps.

    Args:
        steps: the steps to do, in order; drawn by the consumer, only as far as the bounds allow.
        stop: set when the pipeline closes.
        threads: threads that decode (and read, for local files), in this process; 0: all in the caller's thread. Tasks of
            the lane "quick" share one more; a trainer that comes back sooner than such a task takes does it by itself,
            since waking a thread would cost it more.
        io_threads: more threads that only wait for bytes, for fetchers that take whole steps.
        max_bytes: bound of the bytes in flight and of the last step handed over, in this process.
        max_steps: bound of the steps in flight; it only matters for steps of few bytes.
    """

    def __init__(
        self, steps: Iterator[W], *, stop: Stop, threads: int, io_threads: int = 0, max_bytes: int, max_steps: int = MAX_STEPS
    ) -> None:
        self._steps = steps
        self._stop = stop
        self._max_bytes = max_bytes
        self._max_steps = max_steps
        self._sizes = {"cpu": threads, "io": io_threads, "quick": min(1, threads)}
        self._queues: dict[str, SimpleQueue[Task | None]] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()  # the garbage collector may close this very pipeline in a thread that holds it
        self._wake: SimpleQueue[None] = SimpleQueue()  # a token for a consumer that waits
        self._waiting = False  # the consumer wants a token when a step is done
        self._sizing = False  # or when a task is done, which may tell how large steps are
        self._enough = 0  # with more steps in flight than this, none is started
        self._jobs: deque[_Job[W]] = deque()  # in flight, in step order
        self._unfinished: deque[_Job[W]] = deque()  # those of them whose `finish` has not begun
        self._finishing = False
        self._peeked: W | None = None
        self._held_bytes = 0  # of the step handed over last
        self._exhausted = False
        self._quick = False  # the latest task was of the lane "quick"
        self._quick_s: float | None = None  # and took so long
        self._by_itself = False  # the consumer does such tasks
        self._handed_over_s = 0.0
        self._pid = os.getpid()
        self._closed = False
        self.seconds_waiting = 0.0
        _open.add(self)

    def __iter__(self) -> Iterator[W]:
        return self

    def __next__(self) -> W:
        if os.getpid() != self._pid:
            raise LakehouseError(
                "this iterator was started in another process and its threads did not follow the fork; "
                "call iter() in the process that reads"
            )
        if self._stop.asked:
            raise StopIteration
        began = time.perf_counter()
        self._held_bytes = 0  # the trainer lets it go for the next one
        self._by_itself = self._quick_s is not None and began - self._handed_over_s < self._quick_s
        try:
            self._pump()
            if not self._jobs:
                self._stop.at_end = True
                self.close()
                raise StopIteration
            job = self._jobs[0]
            while not self._done(job):
                self._wake.get()
                if self._sizing:
                    self._pump()  # a step's size may have become known, so that more of them fit
            if self._stop.asked:  # closed from another thread
                raise StopIteration
            self._jobs.popleft()
            if job.error is not None:
                self._raise(job)
            self._held_bytes = job.work.cost_bytes() or 0
            if self._sizes["cpu"] and not self._by_itself:
                self._pump()  # the threads go on while the trainer is busy
        except BaseException:
            self.close()
            raise
        self._handed_over_s = time.perf_counter()
        self.seconds_waiting += self._handed_over_s - began
        return job.work

    def _done(self, job: _Job[W]) -> bool:
        self._waiting = True  # before the look at the job: who ends it sets `done` before looking here
        if job.done or self._stop.asked:
            self._waiting = False
        return not self._waiting

    def close(self) -> None:
        """Stops and joins the threads. Steps in flight are dropped. Safe to call twice and from any thread."""
        if self._closed:  # while the interpreter ends, the names of this module may be gone when the last one lets go
            return
        self._closed = True
        self._stop.asked = True
        if os.getpid() != self._pid:  # a forked child has the object, but not its threads, and locks in any state
            return
        with self._lock:  # a task may be starting a lane's threads
            threads, self._threads = self._threads, []
            queues = dict(self._queues)
        for lane, lane_queue in queues.items():
            for _ in range(self._sizes[lane]):
                lane_queue.put(None)
        until = time.monotonic() + _JOIN_SECONDS
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            self._jobs.clear()
            self._unfinished.clear()
            self._peeked = None
            self._exhausted = True
        self._wake.put(None)

    def _raise(self, job: _Job[W]) -> None:
        error = job.error
        job.error = None
        try:
            if error is not None:
                raise error[1]
        finally:
            del error, job  # the traceback would hold this frame, and the frame the error

    def _pump(self) -> None:
        """Starts as many steps as the bounds allow, once a few of them can be started."""
        if len(self._jobs) > self._enough:
            return
        self._sizing = False
        while not self._exhausted and not self._stop.asked and self._fits():
            work, self._peeked = self._peeked, None
            if work is not None:
                self._begin(work)
        self._enough = len(self._jobs) - len(self._jobs) // _TOP_UP_SHARE

    def _fits(self) -> bool:
        """Whether one more step may be started. Its size unknown: only alone."""
        if len(self._jobs) >= self._steps_ahead():
            return False
        if self._peeked is None:
            self._peeked = next(self._steps, None)
            if self._peeked is None:
                self._exhausted = True
                return False
        if not self._jobs:
            return True
        self._sizing = True  # before any size is asked for: a task that ends meanwhile may be the one that tells it
        total_bytes = self._held_bytes
        for work in (self._peeked, *(job.work for job in self._jobs)):
            cost_bytes = work.cost_bytes()
            if cost_bytes is None:
                return False
            total_bytes += cost_bytes
        self._sizing = False
        return total_bytes <= self._max_bytes

    def _steps_ahead(self) -> int:
        if not self._sizes["cpu"] or self._by_itself:
            return 1  # a step is done when it has begun
        return min(_QUICK_STEPS, self._max_steps) if self._quick else self._max_steps

    def _begin(self, work: W) -> None:
        job = _Job(work)
        with self._lock:
            self._jobs.append(job)
            self._unfinished.append(job)
        try:
            work.start(lambda lane, task: self._spawn(job, lane, task))
        except BaseException as error:  # noqa: BLE001 - raised where the step is handed over
            job.fail(-1, error)
        self._task_done(job)

    def _spawn(self, job: _Job[W], lane: Lane, task: Task) -> None:
        with self._lock:
            job.left += 1
            order = job.order
            job.order += 1
        self._quick = lane == "quick"

        def run() -> None:
            began = time.perf_counter()
            try:
                if job.error is None and not self._stop.asked:
                    task()
            except BaseException as error:  # noqa: BLE001 - raised where the step is handed over
                with self._lock:
                    job.fail(order, error)
            self._quick_s = time.perf_counter() - began if lane == "quick" else None
            self._task_done(job)

        if not self._sizes["cpu"] or (self._by_itself and lane == "quick"):
            run()
        else:
            self._queue(lane if self._sizes[lane] else "cpu").put(run)

    def _task_done(self, job: _Job[W]) -> None:
        with self._lock:
            job.left -= 1
            left = job.left
        if left:
            if self._sizing:
                self._wake.put(None)
            return
        while True:
            with self._lock:
                if self._finishing or not self._unfinished or self._unfinished[0].left:
                    return
                ended = self._unfinished.popleft()
                self._finishing = True
            try:
                if ended.error is None and not self._stop.asked:
                    ended.work.finish()
            except BaseException as error:  # noqa: BLE001 - raised where the step is handed over
                ended.fail(ended.order, error)
            with self._lock:
                self._finishing = False
            ended.done = True
            if self._waiting:
                self._waiting = False
                self._wake.put(None)

    def _queue(self, lane: Lane) -> SimpleQueue[Task | None]:
        """The lane's queue; starts its threads on first use, but not once the pipeline has closed: nobody would end them."""
        if lane not in self._queues:
            with self._lock:
                if lane not in self._queues:
                    lane_queue: SimpleQueue[Task | None] = SimpleQueue()
                    for i in range(0 if self._stop.asked else self._sizes[lane]):
                        thread = threading.Thread(
                            target=_serve, args=(lane_queue, self._stop), name=f"lakehouse-{lane}-{i}", daemon=True
                        )
                        thread.start()
                        self._threads.append(thread)
                    self._queues[lane] = lane_queue
        return self._queues[lane]


def _serve(tasks: SimpleQueue[Task | None], stop: Stop) -> None:
    """A thread's life. It knows the queue only, so that a dropped pipeline can be collected."""
    while (task := tasks.get()) is not None and not stop.asked:
        task()
        del task  # or the last step would live until the next one comes


# Threads inside a decoder must not meet an interpreter that is being taken apart.
_open: weakref.WeakSet[Pipeline[Any]] = weakref.WeakSet()


def _close_open() -> None:
    for pipeline in list(_open):
        pipeline.close()


atexit.register(_close_open)
