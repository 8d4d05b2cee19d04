"""Daemon threads that may be left behind: a read that never returns holds up neither its caller nor the end of the process."""

from __future__ import annotations

import os
import queue
import threading
import time
from abc import ABC, abstractmethod


class Job(ABC):
    """Something to do in another thread, once.

    Attributes:
        started_s: `time.monotonic` when it was begun; None: not yet.
        abandoned: nobody waits for it any more.
    """

    def __init__(self) -> None:
        self.started_s: float | None = None
        self.abandoned = False
        self.done = False

    @abstractmethod
    def run(self) -> None:
        """Do it; must not raise."""

    @abstractmethod
    def deliver(self) -> None:
        """Called after `run`, unless it was abandoned."""


class Pool:
    """At most ``threads`` daemon threads, begun when there is work for them.

    A thread whose job is abandoned is replaced and ends when the job returns. When ``4 * threads`` of them hang, no new
    job is taken until one returns (those already taken are still done): a store that never answers must not cost a thread
    per read.

    Args:
        threads: at work at a time, per pool.
        name: of the threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        self.threads = threads
        self.hanging = 0
        self._max_hanging = 4 * threads
        self._name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._alive = 0
        self._idle = 0  # threads that wait for a job which nobody has put yet
        self._backlog = 0  # jobs that no thread was free for

    def submit(self, job: Job) -> bool:
        """Have a job run; False: refused, because too many earlier ones hang."""
        with self._lock:
            if self.hanging >= self._max_hanging:
                return False
            if self._idle:
                self._idle -= 1
            elif self._alive < self.threads:
                self._start()
            else:
                self._backlog += 1
        self._jobs.put(job)
        return True

    def abandon(self, job: Job) -> bool:
        """Wait no more for a job that was begun; False: it has just finished."""
        with self._lock:
            if job.done:
                return False
            job.abandoned = True
            self._alive -= 1
            self.hanging += 1
            if self._backlog:
                self._backlog -= 1
                self._start()
        return True

    def close(self) -> None:
        """End the threads when they are done with what they are at."""
        if os.getpid() == self._pid:  # a forked child has none of them
            for _ in range(self._alive):
                self._jobs.put(None)

    def _start(self) -> None:
        """Begin a thread for a job that is being put; call with the lock held."""
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._alive += 1
        try:
            thread.start()
        except RuntimeError:  # the system allows no more threads
            self._alive -= 1
            if not self._alive:
                raise
            self._backlog += 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.started_s = time.monotonic()
            job.run()
            with self._lock:
                job.done = True
                if job.abandoned:
                    self.hanging -= 1
                    return
                if self._backlog:
                    self._backlog -= 1
                else:
                    self._idle += 1
            job.deliver()
            del job  # it holds bytes
