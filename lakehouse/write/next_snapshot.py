"""The snapshot that follows another one, where its manifest lists are written already."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any


def following(
    paimon: Any,
    latest: Any,
    base_list: tuple[str, int],
    delta_list: tuple[str, int],
    *,
    kind: str,
    rows: int,
    next_row_id: int | None,
    index_manifest: str | None,
    statistics: str | None,
    properties: Mapping[str, str],
) -> Any:
    """A pypaimon snapshot that is not published yet.

    Args:
        paimon: handle of the table or branch, its schema the latest.
        latest: the snapshot that it follows.
        base_list: name and bytes of the manifest list of what was there before.
        delta_list: name and bytes of the manifest list of what it changes.
        kind: ``COMPACT`` or ``OVERWRITE``.
        rows: of the table afterwards.
        next_row_id: the row id that is free afterwards.
        index_manifest: names the marks of deleted rows.
        statistics: name of the statistics file.
        properties: what it says of itself.
    """
    from pypaimon.build_info import full_version
    from pypaimon.snapshot.snapshot import BATCH_COMMIT_IDENTIFIER, Snapshot

    return Snapshot(
        version=3,
        id=latest.id + 1,
        schema_id=paimon.table_schema.id,
        base_manifest_list=base_list[0],
        base_manifest_list_size=base_list[1],
        delta_manifest_list=delta_list[0],
        delta_manifest_list_size=delta_list[1],
        total_record_count=rows,
        delta_record_count=rows - (latest.total_record_count or 0),
        commit_user=str(uuid.uuid4()),
        commit_identifier=BATCH_COMMIT_IDENTIFIER,
        commit_kind=kind,
        time_millis=max(int(time.time() * 1000), latest.time_millis),
        watermark=latest.watermark,
        statistics=statistics,
        next_row_id=next_row_id,
        index_manifest=index_manifest,
        properties=dict(properties),
        writer_version=full_version(),
    )
