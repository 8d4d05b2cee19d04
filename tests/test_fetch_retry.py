"""What a failed read means, and how long to wait before the next try."""

from __future__ import annotations

import errno
import random

import pytest

from lakehouse.errors import FetchError
from lakehouse.fetch.retry import MAX_BACKOFF_S, backoff_s, classify, is_mistake


def test_backoff_grows_with_full_jitter_up_to_a_limit() -> None:
    generator = random.Random(0)
    for retry, top_s in ((0, 0.5), (1, 1.0), (3, 4.0), (5, 16.0), (6, MAX_BACKOFF_S), (5_000, MAX_BACKOFF_S)):
        waits_s = [backoff_s(retry, 0.5, generator) for _ in range(300)]
        assert 0 <= min(waits_s) < 0.1 * top_s
        assert 0.9 * top_s < max(waits_s) <= top_s


class ClientError(Exception):
    """As botocore's."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__("An error occurred when calling the GetObject operation")
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ClientError("SlowDown", 503), "throttled"),
        (ClientError("SlowDown", 200), "throttled"),
        (ClientError("NoSuchKey", 404), "gone"),
        (ClientError("AccessDenied", 403), "denied"),
        (ClientError("InternalError", 500), "transient"),
        (ClientError("InvalidRange", 416), "range"),
        (caused(OSError(errno.EINVAL, "opaque"), ClientError("SlowDown", 503)), "throttled"),
        (caused(FileNotFoundError("a"), ClientError("SlowDown", 503)), "gone"),  # the outermost one decides
        (IsADirectoryError("a"), "gone"),
        (BrokenPipeError(), "transient"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "transient"),
        (OSError("AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 28, Timeout was reached"), "transient"),
        (OSError("got HTTP status 503"), "throttled"),
        (FetchError("503"), "range"),  # a number alone may be part of a name
        (ValueError(), "range"),
    ],
    ids=repr,
)
def test_classify(error: BaseException, verdict: str) -> None:
    assert classify(error) == verdict
    assert not is_mistake(error)


def test_s3fs_errors_are_understood() -> None:
    translate = pytest.importorskip("s3fs.errors").translate_boto_error
    for code, verdict in {
        "SlowDown": "throttled",
        "ServiceUnavailable": "throttled",
        "InternalError": "transient",
        "RequestTimeout": "transient",
        "NoSuchKey": "gone",
        "AccessDenied": "denied",
        "ExpiredToken": "denied",
        "InvalidRange": "range",
    }.items():
        assert classify(translate(ClientError(code, 0), set_cause=False)) == verdict, code
