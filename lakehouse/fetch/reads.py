"""Runs a set of requests: at most so many at a time, repeated when that may help, none waited for beyond its time limit."""

from __future__ import annotations

import heapq
import math
import queue
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lakehouse.errors import cause_line
from lakehouse.fetch.pool import Job, Pool
from lakehouse.fetch.refs import TO_END, range_text
from lakehouse.fetch.retry import RETRIED, Verdict, backoff_s, classify, is_mistake

# (uri, offset, length) -> those bytes; length -1: to the end. Fewer bytes than asked only where the object ends.
ReadRange: TypeAlias = Callable[[str, int, int], "bytes | bytearray | memoryview"]

# Nearly always the object does end there, and every step that holds such a row would wait for the last retry.
_SHORT_RETRIES = 2
# Not the module's own generator: drawing from that would change what a seeded training program draws.
_JITTER = random.SystemRandom()


@dataclass(frozen=True)
class Policy:
    """How requests are run.

    Attributes:
        timeout_s: per try.
        retries: further tries after the first.
        backoff_s: upper end of the wait before the first retry; it doubles with each.
    """

    timeout_s: float
    retries: int
    backoff_s: float


@dataclass(frozen=True)
class Request:
    """One range to ask for."""

    uri: str
    offset: int
    length: int


@dataclass(frozen=True)
class Failure:
    """Why a request got no answer.

    Attributes:
        verdict: what kind of failure the last one was.
        why: in one line.
        error: the last one; None: the answers were short.
        prefix: the longest short answer.
    """

    verdict: Verdict
    why: str
    error: BaseException | None
    prefix: bytes = b""


Answer: TypeAlias = "bytes | memoryview | Failure"


@dataclass
class Tally:
    """What a fetch has cost so far."""

    requests: int = 0
    bytes_fetched: int = 0
    retries: int = 0
    throttles: int = 0
    seconds_backoff: float = 0.0


class Pace:
    """How many requests may be in flight: halved when the store asks for fewer, one more with each so many that it answers.

    Shared by the threads of a process without a lock: an update that is lost does no harm.

    Args:
        most: requests in flight, at most and at first.
    """

    _LEAST = 4
    _HALVING_S = 1.0  # requests sent before the last halving are throttled too, and mean nothing new

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._halved_s = -math.inf

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return int(self._limit)

    def throttled(self) -> None:
        """The store asked for fewer."""
        now_s = time.monotonic()
        if now_s - self._halved_s >= self._HALVING_S:
            self._halved_s = now_s
            self._limit = max(min(self._LEAST, self._most), self._limit / 2)

    def answered(self) -> None:
        """The store gave an answer."""
        if self._limit < self._most:
            self._limit = min(self._most, self._limit + 1 / self._limit)


def run_requests(
    requests: Sequence[Request], read_range: ReadRange, pool: Pool, policy: Policy, tally: Tally, pace: Pace
) -> list[Answer]:
    """The answers, in the order of the requests.

    Raises:
        Exception: what ``read_range`` raised, where it tells of a mistake in a program, not of one read.
    """
    if not requests:
        return []
    run = _Run(requests, read_range, pool, policy, tally, pace)
    return run.answers()


class _Try(Job):
    """One call of ``read_range``."""

    def __init__(self, index: int, request: Request, read_range: ReadRange, done: queue.SimpleQueue[_Try]) -> None:
        super().__init__()
        self.index = index
        self.data: bytes | memoryview = b""
        self.error: BaseException | None = None
        self.unwanted = False
        self._request = request
        self._read_range = read_range
        self._done = done

    def run(self) -> None:
        if self.unwanted:
            return
        try:
            data = self._read_range(self._request.uri, self._request.offset, self._request.length)
            self.data = data if isinstance(data, bytes) else _kept(data)
        except BaseException as error:  # noqa: BLE001 - it is raised or reported where the answer is waited for
            self.error = error

    def deliver(self) -> None:
        self._done.put(self)


def _kept(data: bytearray | memoryview) -> bytes | memoryview:
    """The bytes as they are now: a copy, except of what can't be written to any more."""
    view = memoryview(data)
    lasting = isinstance(view.obj, bytes) or type(view.obj).__module__ == "obstore"
    return view if lasting and view.c_contiguous and view.format == "B" else bytes(view)


class _Run:
    """The state of one `run_requests`; used by the calling thread alone."""

    def __init__(
        self, requests: Sequence[Request], read_range: ReadRange, pool: Pool, policy: Policy, tally: Tally, pace: Pace
    ) -> None:
        self._requests = requests
        self._read_range = read_range
        self._pool = pool
        self._policy = policy
        self._tally = tally
        self._pace = pace
        self._answers: list[Answer | None] = [None] * len(requests)
        self._waiting = deque(range(len(requests)))
        self._later: list[tuple[float, int]] = []  # heap of (when to try again, request)
        self._running: set[_Try] = set()
        self._done: queue.SimpleQueue[_Try] = queue.SimpleQueue()
        self._tries = [0] * len(requests)
        self._shorts = [0] * len(requests)
        self._prefixes: dict[int, bytes] = {}
        self._check_at_s = 0.0  # no running try reaches its time limit before this

    def answers(self) -> list[Answer]:
        try:
            while self._waiting or self._later or self._running:
                self._begin()
                self._wait()
        finally:
            for attempt in self._running:
                attempt.unwanted = True
        return [answer for answer in self._answers if answer is not None]

    def _begin(self) -> None:
        now_s = time.monotonic()
        while self._later and self._later[0][0] <= now_s:
            self._waiting.appendleft(heapq.heappop(self._later)[1])  # first: its wait may not add to that of all others
        while self._waiting and len(self._running) < min(self._pool.threads, self._pace.limit):
            index = self._waiting.popleft()
            attempt = _Try(index, self._requests[index], self._read_range, self._done)
            if not self._pool.submit(attempt):
                why = f"{self._pool.hanging} earlier reads of this process never returned"
                self._answers[index] = Failure("transient", why, None)
                continue
            self._tally.requests += 1
            self._tally.retries += self._tries[index] > 0
            self._tries[index] += 1
            if not self._running:
                self._check_at_s = now_s + self._policy.timeout_s
            self._running.add(attempt)

    def _wait(self) -> None:
        wake_s = [self._check_at_s] if self._running else []
        wake_s += [self._later[0][0]] if self._later else []
        if not wake_s:
            return
        try:
            attempt = self._done.get(timeout=max(min(wake_s) - time.monotonic(), 0.0))
        except queue.Empty:
            pass
        else:
            self._running.discard(attempt)
            self._settle(attempt)
            attempt.data = b""  # its thread may not have come round to letting go of it
        if self._running and time.monotonic() >= self._check_at_s:
            self._give_up_late_ones()

    def _give_up_late_ones(self) -> None:
        now_s = time.monotonic()
        limit_s = self._policy.timeout_s
        self._check_at_s = now_s + limit_s
        for attempt in list(self._running):
            started_s = attempt.started_s
            if started_s is None:
                continue  # it waits for a thread, which is not the store's fault
            if now_s - started_s < limit_s:
                self._check_at_s = min(self._check_at_s, started_s + limit_s)
            elif self._pool.abandon(attempt):
                self._running.discard(attempt)
                late = TimeoutError(f"no answer within {limit_s:g} s")
                self._fail(attempt.index, "transient", cause_line(late), late)

    def _settle(self, attempt: _Try) -> None:
        index, error = attempt.index, attempt.error
        request = self._requests[index]
        if error is not None:
            if is_mistake(error):
                raise error
            self._fail(index, classify(error), cause_line(error), error)
            return
        got = len(attempt.data)
        self._tally.bytes_fetched += got
        if request.length in (TO_END, got):
            self._pace.answered()
            self._answers[index] = attempt.data
            return
        if len(self._prefixes.get(index, b"")) < got < request.length:
            self._prefixes[index] = bytes(attempt.data)
        self._shorts[index] += 1
        asked = range_text(request.offset, request.length)
        self._fail(index, "short", f"got {got} bytes, expected {request.length} (asked for {asked})", None)

    def _fail(self, index: int, verdict: Verdict, why: str, error: BaseException | None) -> None:
        if verdict == "throttled":
            self._tally.throttles += 1
            self._pace.throttled()
        retry = self._tries[index] - 1
        hopeless = verdict not in RETRIED or (verdict == "short" and self._shorts[index] > _SHORT_RETRIES)
        if not hopeless and retry < self._policy.retries:
            wait_s = backoff_s(retry, self._policy.backoff_s, _JITTER)
            self._tally.seconds_backoff += wait_s
            heapq.heappush(self._later, (time.monotonic() + wait_s, index))
            return
        times = f" (tried {self._tries[index]} times)" if self._tries[index] > 1 else ""
        self._answers[index] = Failure(verdict, why + times, error, self._prefixes.get(index, b""))
