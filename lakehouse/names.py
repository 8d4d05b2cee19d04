"""Names of tables, databases, tags and branches become file names: which ones may."""

from __future__ import annotations

import re

from lakehouse.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_TRAINING_SET_TAG = re.compile(r"training-set\.(.+)\.v(\d+)(?:\.[0-9a-f]{8})?")
_RULE = "use 1 to 128 letters, digits, '_', '-' or '.', beginning with a letter, digit or '_'"


def checked(name: str, what: str) -> str:
    """The name itself, when it can be a file name everywhere.

    Upstream takes ``../x`` and ``x/y`` as tag names; afterwards no tag of that table can be listed.

    Raises:
        ConfigError: a name that is a path, blank, too long, or has characters that some store treats specially.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} can't name a {what}: {_RULE}")
    return name


def training_set_tag(name: str, version: int) -> str:
    """The tag that keeps the rows of a saved training set."""
    return f"training-set.{name}.v{version}"


def kept_training_set(tag: str) -> str | None:
    """``NAME version N``: the training set whose rows a tag keeps; None of any other tag."""
    found = _TRAINING_SET_TAG.fullmatch(tag)
    return f"{found[1]} version {found[2]}" if found else None


def split_table_name(name: str) -> tuple[str, str]:
    """``database.table`` to its parts; ``default`` is the database when none is given.

    Raises:
        ConfigError: see `checked`.
    """
    if not isinstance(name, str):
        raise ConfigError(f"a table's name is a string like 'default.frames', got {type(name).__name__}")
    database, dot, table = name.partition(".")
    if not dot:
        database, table = "default", name
    if "." in table:
        raise ConfigError(f"{name!r} can't name a table: write database.table")
    return checked(database, "database"), checked(table, "table")
