"""The exception tree.

Every error says what happened, where, what was got and expected, and what to do, in one string: torch rebuilds a worker's
exception as ``type(message)``, so attributes would be lost on the way. "Where" reads
``default.drive_frames@41 row 88123 column frame_jpg (s3://lake/... 4096+18211)``: table, snapshot, row id, column, byte range.
"""

from __future__ import annotations

from collections.abc import Iterator


class LakehouseError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(LakehouseError, ValueError):
    """A catalog's configuration is missing, misspelt or contradictory."""


class NotFoundError(LakehouseError, LookupError):
    """A table, tag, snapshot, branch or column does not exist; the text lists what does."""

    # LookupError's child KeyError prints repr(message); ours prints the message.


class SchemaError(LakehouseError, TypeError):
    """A schema or the data given for it can't be held by the table without changing values."""


class CommitError(LakehouseError, RuntimeError):
    """A commit did not happen; nothing of it is visible and it is safe to try again."""


class CommitUnknownError(CommitError):
    """It can't be known whether a commit happened: look at the table's snapshots before trying again."""


class FetchError(LakehouseError, OSError):
    """The bytes of a blob could not be read."""


class DecodeError(LakehouseError, ValueError):
    """The bytes of a blob are not what the decoder expects."""


class BadRowLimitError(LakehouseError):
    """More rows were skipped or nulled than ``max_bad`` allows."""


class ResumeError(LakehouseError, ValueError):
    """A saved state does not fit the loader that it is loaded into."""


def causes(error: BaseException, *, contexts: bool = False) -> Iterator[BaseException]:
    """The error, its cause, the cause of that and so on, each once: ``raise error from error`` makes a circle.

    Args:
        error: where to begin.
        contexts: go on with what was being handled, where an error names no cause.
    """
    passed: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in passed:
        passed.add(id(link))
        yield link
        link = link.__cause__ or (link.__context__ if contexts else None)


def cause_line(error: BaseException) -> str:
    """The one line of a cause that an error's own text repeats: ``OSError: [Errno 2] No such file``.

    With the first cause of all, where the error does not repeat that itself: a library's "failed to load" says nothing of keys.
    """
    text = " ".join(str(error).split()) or repr(error)
    line = f"{type(error).__name__}: {text[:400]}"
    *_, first = causes(error)
    said = " ".join(str(first).split())
    return line if first is error or said in text else f"{line} (from {type(first).__name__}: {said[:400]})"
