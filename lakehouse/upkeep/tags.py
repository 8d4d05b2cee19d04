"""What a tag's file says beyond its snapshot: a description and how long it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from lakehouse.errors import ConfigError

# A key of ours in the tag's JSON. Paimon's own readers, in Java and Python, leave keys alone that they don't know.
KEY = "lakehouse"
MAX_DESCRIPTION = 4096
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class TagInfo:
    """A tag.

    Attributes:
        name: the tag's.
        snapshot: number of the snapshot that it names.
        created: when the tag was made, in UTC; None: another engine made it and did not say.
        keep_until: from when on `Table.expire` removes the tag; None: never.
        description: what its maker wrote.
    """

    name: str
    snapshot: int
    created: datetime | None
    keep_until: datetime | None
    description: str | None

    def __str__(self) -> str:
        until = f", kept until {self.keep_until.isoformat(timespec='seconds')}" if self.keep_until else ""
        text = f": {self.description}" if self.description else ""
        return f"{self.name} -> snapshot {self.snapshot}{until}{text}"


def extras(now: datetime, keep_for: timedelta | None, description: str | None) -> dict[str, Any]:
    """What is added to the JSON of a snapshot to make it a tag.

    Paimon's own fields for a tag's time are local times without a zone; ours beside them are exact.

    Raises:
        ConfigError: a time to live that is not positive, or a description that is too long.
    """
    if description is not None and (not isinstance(description, str) or len(description) > MAX_DESCRIPTION):
        raise ConfigError(f"a tag's description is text of at most {MAX_DESCRIPTION} characters, got {description!r:.200}")
    ours: dict[str, Any] = {"created": now.isoformat()}
    fields: dict[str, Any] = {}
    if description is not None:
        ours["description"] = description
    if keep_for is not None:
        if not isinstance(keep_for, timedelta) or keep_for <= timedelta(0):
            raise ConfigError(f"keep_for is a positive timedelta, got {keep_for!r}; e.g. timedelta(days=30)")
        try:
            ours["keep_until"] = (now + keep_for).isoformat()
        except OverflowError as error:
            raise ConfigError(f"keep_for={keep_for!r} ends after the year 9999; leave it out to keep the tag") from error
        local = now.astimezone()
        fields["tagCreateTime"] = [
            *(local.year, local.month, local.day, local.hour, local.minute, local.second),
            local.microsecond * 1000,
        ]
        fields["tagTimeRetained"] = keep_for.total_seconds()
    return {**fields, KEY: ours}


def tag_info(name: str, content: Mapping[str, Any]) -> TagInfo:
    """What a tag's JSON says.

    Raises:
        ValueError, TypeError, KeyError: it is no tag's.
    """
    ours = content.get(KEY)
    ours = ours if isinstance(ours, Mapping) else {}
    created = _time(ours.get("created")) or _local(content.get("tagCreateTime"))
    retained = content.get("tagTimeRetained")
    until = _time(ours.get("keep_until"))
    if until is None and retained is not None and created is not None:
        until = created + timedelta(seconds=float(retained))
    text = ours.get("description")
    return TagInfo(name, int(content["id"]), created, until, str(text) if text is not None else None)


def _time(text: Any) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(timezone.utc) if text else None


def _local(parts: Any) -> datetime | None:
    """Java's LocalDateTime as a list of up to seven numbers, in the zone of this process."""
    if not parts:
        return None
    numbers = [int(part) for part in parts]
    year, month, day, hour, minute, second, nanos = numbers + [0] * (7 - len(numbers))
    return datetime(year, month, day, hour, minute, second, nanos // 1000).astimezone(timezone.utc)
