"""What a failed read means, and how long to wait before the next try. Pure but for the random generator given."""

from __future__ import annotations

import errno
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar

from lakehouse.errors import FetchError, LakehouseError

T = TypeVar("T")

# gone, denied: another try gives the same. throttled, transient: another try may succeed. range: this range, not its object.
Verdict: TypeAlias = Literal["gone", "denied", "throttled", "transient", "short", "range"]

RETRIED: frozenset[Verdict] = frozenset({"throttled", "transient", "short"})
ADVICE: dict[Verdict, str] = {
    "gone": "restore the object; where its snapshot has expired, or its table was made again since, open the table again",
    "denied": "give these credentials the right to read it",
    "throttled": "lower `concurrency`, or raise `retries`",
    "transient": "look at the network and the store; raise `retries` or `timeout_s` if they are only slow",
    "short": "restore the object, or read a snapshot that does not need it",
    "range": "see the cause",
}
MAX_BACKOFF_S = 20.0
_RETRIES = 8
_BACKOFF_S = 0.1
_JITTER = random.SystemRandom()  # not the program's own, and another in each forked process

# A mistake in a program must stop the run, not become a bad row.
_MISTAKES = (TypeError, AttributeError, NameError, AssertionError, ImportError, NotImplementedError)
_BY_STATUS: dict[int, Verdict] = {
    **dict.fromkeys((401, 403), "denied"),
    **dict.fromkeys((404, 410), "gone"),
    **dict.fromkeys((429, 503), "throttled"),
    **dict.fromkeys((408, 425, 500, 502, 504), "transient"),
}
_BY_ERRNO: dict[int, Verdict] = {
    errno.EBUSY: "throttled",  # s3fs's SlowDown
    **dict.fromkeys(
        (
            errno.EAGAIN,
            errno.ECONNABORTED,
            errno.ECONNREFUSED,
            errno.ECONNRESET,
            errno.EHOSTUNREACH,
            errno.ENETDOWN,
            errno.ENETRESET,
            errno.ENETUNREACH,
            errno.EPIPE,
            errno.ETIMEDOUT,
            getattr(errno, "EREMOTEIO", errno.EPIPE),  # s3fs's InternalError; not on every system
        ),
        "transient",
    ),
}
# Clients' own classes, which have no common base: botocore, aiohttp, urllib3, http.client, asyncio before Python 3.11.
_TRANSIENT_CLASS = re.compile(
    r"Timeout|ConnectionError|ConnectionClosed|ServerDisconnected|EndpointConnection|IncompleteRead|IncompleteBody|Payload|ProtocolError"
)
# Words of messages, for clients that raise one class for everything: pyarrow, Paimon's FileIO, obstore, OpenDAL.
_BY_WORDS: tuple[tuple[Verdict, re.Pattern[str]], ...] = (
    (
        "denied",
        re.compile(
            r"access.?denied|forbidden|unauthori[sz]ed|signature.?does.?not.?match|invalid.?access.?key|expired.?token",
            re.IGNORECASE,
        ),
    ),
    (
        "gone",
        re.compile(r"no.?such.?(key|bucket|file)|not.?found|path does not exist|http status(?: code)?:? 404", re.IGNORECASE),
    ),
    (
        "throttled",
        re.compile(r"slow.?down|throttl|too.?many.?requests|request rate|http status(?: code)?:? (429|503)", re.IGNORECASE),
    ),
    (
        "transient",
        re.compile(
            r"internal.?(server.?)?(error|failure)|service.?unavailable|bad gateway|timed? ?-?out\b|network.?connection"
            r"|connection (was )?(reset|aborted|closed|refused)|broken pipe|http status(?: code)?:? 50\d",
            re.IGNORECASE,
        ),
    ),
)
_MAX_CHAIN = 8


class ReadError(OSError):
    """A failed read whose meaning the client knows.

    Attributes:
        verdict: see `classify`.
    """

    def __init__(self, text: str, verdict: Verdict) -> None:
        super().__init__(text)
        self.verdict: Verdict = verdict

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadError, (str(self), self.verdict)


def is_mistake(error: BaseException) -> bool:
    """Whether an error tells of a program or its setup, not of one read."""
    if isinstance(error, LakehouseError):
        return not isinstance(error, FetchError)
    return isinstance(error, _MISTAKES) or not isinstance(error, Exception)


def classify(error: BaseException) -> Verdict:
    """What a failed read means: decided by the outermost error of the chain that tells."""
    for link in _chain(error):
        verdict = _verdict(link)
        if verdict is not None:
            return verdict
    return "range"


def backoff_s(retry: int, base_s: float, generator: random.Random) -> float:
    """How long to wait before retry number ``retry`` (from 0): exponential with full jitter.

    Full jitter, because clients that were throttled together would otherwise come back together (AWS Architecture Blog,
    "Exponential Backoff And Jitter").
    """
    return generator.uniform(0.0, min(MAX_BACKOFF_S, base_s * 2.0 ** min(retry, 30)))


def persistently(act: Callable[[], T]) -> T:
    """What an act gives, done again where that may help. For single small requests; `RangeFetcher` does it for many.

    Raises:
        OSError: of the last try.
    """
    for retry in range(_RETRIES):
        try:
            return act()
        except OSError as error:
            if classify(error) not in RETRIED:
                raise
        time.sleep(backoff_s(retry, _BACKOFF_S, _JITTER))
    return act()


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _verdict(error: BaseException) -> Verdict | None:
    if isinstance(error, ReadError):
        return error.verdict
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return "gone"
    if isinstance(error, PermissionError):
        return "denied"
    status = _status(error)
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if isinstance(error, ConnectionError | TimeoutError):
        return "transient"
    if isinstance(error, OSError) and error.errno in _BY_ERRNO:
        return _BY_ERRNO[error.errno]
    if any(_TRANSIENT_CLASS.search(kind.__name__) for kind in type(error).__mro__):
        return "transient"
    text = f"{_code(error)} {error}"
    return next((verdict for verdict, words in _BY_WORDS if words.search(text)), None)


def _status(error: BaseException) -> int:
    """An HTTP status, as aiohttp, requests, botocore and urllib keep it; 0: none."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        metadata = response.get("ResponseMetadata")
        status = metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None
        return status if _is_status(status) else 0
    # One after another: aiohttp warns when its `code` is looked at.
    for owner, name in (
        (error, "status"),
        (error, "status_code"),
        (response, "status_code"),
        (response, "status"),
        (error, "code"),
    ):
        status = getattr(owner, name, None)
        if _is_status(status):
            return status
    return 0


def _is_status(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and 100 <= value < 600


def _code(error: BaseException) -> str:
    """An S3 error code such as ``SlowDown``, as botocore keeps it."""
    response: Any = getattr(error, "response", None)
    details = response.get("Error") if isinstance(response, dict) else None
    return str(details.get("Code", "")) if isinstance(details, dict) else ""
