"""pypaimon's FileIO for OSS, which refuses to commit where upstream would fall back to an unsafe rename."""

from __future__ import annotations

import importlib.util
from typing import Any

from pypaimon.filesystem.oss_file_io import OssFileIO

from lakehouse.errors import CommitError, cause_line
from lakehouse.oss.settings import DENIED, refusal


class CreatingOssFileIO(OssFileIO):
    """Writes a file that must be new only where OSS itself refuses to overwrite."""

    _atomic_write_supported: bool | None  # upstream's, None until it is known

    def try_to_write_atomic(self, path: str, content: str) -> bool:
        """Write a file unless it is there; False: it is, by another writer's hand.

        Raises:
            CommitError: a bucket in which OSS would not notice.
            OSError: OSS refused or did not answer.
        """
        self.check_creates(path)
        return bool(super().try_to_write_atomic(path, content))

    def check_creates(self, path: str) -> None:
        """See that OSS refuses to overwrite files of this bucket; asked once per FileIO.

        Raises:
            CommitError: it does not, or can't be asked.
        """
        if self._atomic_write_supported is True:
            return
        has_oss2 = importlib.util.find_spec("oss2") is not None
        why = refusal(self._versioning(path) if has_oss2 else None, has_oss2=has_oss2)
        if why is not None:
            raise CommitError(f"bucket {self._oss_bucket} of {path} is not written to: {why}")
        self._atomic_write_supported = True

    def _versioning(self, path: str) -> str | None:
        import oss2

        session = oss2.Session()
        try:
            status = self._create_oss_bucket(session).get_bucket_versioning().status
            return None if status is None else str(status)
        except oss2.exceptions.ServerError as error:
            if error.status == 403 and error.code == "AccessDenied":
                return DENIED
            raise CommitError(
                f"the versioning of {path} can't be read ({cause_line(_short(error))}); nothing was changed"
            ) from None
        except (oss2.exceptions.OssError, ValueError, OSError) as error:
            raise CommitError(f"the versioning of {path} can't be read ({cause_line(error)}); nothing was changed") from error
        finally:
            session.session.close()


def with_oss_remedy(catalog: Any) -> Any:
    """The same pypaimon catalog; where its tables lie on OSS and no server commits, `CreatingOssFileIO` writes their files."""
    file_io: Any = getattr(catalog, "file_io", None)
    inner: Any = getattr(file_io, "_delegate", file_io)  # beneath a cache
    if type(inner) is OssFileIO:
        safe = CreatingOssFileIO(str(catalog.warehouse), inner.properties)
        if inner is file_io:
            catalog.file_io = safe
        else:
            file_io._delegate = safe  # noqa: SLF001 - upstream has no other way to what the cache stands before
    return catalog


def _short(error: Any) -> Exception:
    """The error without its request's details, which name the access key."""
    return OSError(f"OSS answered {error.status} {error.code}: {error.message}")
