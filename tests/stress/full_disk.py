"""A disk of 2 MB that fills up: run in a mount namespace of its own, it mounts a tmpfs and appends with ever less room.

Prints one line of JSON: how often an append failed and how often it was committed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import lakehouse as lh
from tests.stress.lake import held, made, orphans, rows

_SIZE_KB = 2048


def main(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE_KB}k", "none", str(folder)], check=True)
    table = made(folder / "lake", "default.t")
    table.append(rows(range(6)))
    filler, committed = folder / "filler", 1
    errors: list[str] = []
    for room_kb in range(0, 96, 4):
        filler.unlink(missing_ok=True)
        with filler.open("wb", buffering=0) as file:
            while _free_kb(folder) > room_kb:
                file.write(b"x" * 4096)
        try:
            table.append(rows(range(6 * committed, 6 * committed + 6)))
            committed += 1
        except lh.CommitError as error:
            errors.append(str(error))
        assert held(table) == rows(range(6 * committed))
        assert orphans(table) == set()
    filler.unlink()
    table.append(rows(range(6 * committed, 6 * committed + 6)))
    assert held(table) == rows(range(6 * committed + 6))
    for text in errors:
        assert "nothing was committed" in text, text
        assert "No space left" in text, text
    print(json.dumps({"committed": committed, "failed": len(errors)}))


def _free_kb(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_bsize // 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]))
