"""`CatalogConfig`: the settings expanded, checked, and kept from leaking."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lakehouse.config.options import BLOB_ROOTS, METASTORES, SCHEMES, nearest, refuse
from lakehouse.config.settings import PASSWORD, Setting, choose, collect, read_document
from lakehouse.errors import ConfigError, causes

MASK = "***"
_LEAST_SECRET = 4  # characters: to mask shorter ones would garble texts


@dataclass(frozen=True)
class Recipe:
    """How a config came about. What a plain pickle carries, for which its settings stand without their secrets."""

    name: str
    file: str | None
    settings: tuple[Setting, ...]


class CatalogOptions(Mapping[str, str]):
    """The options for pypaimon: a read-only mapping that shows no secret; ``dict(options)`` takes the values out."""

    __slots__ = ("_hidden", "_recipe", "_roots", "_values")

    def __init__(self, values: dict[str, str], roots: tuple[str, ...], hidden: frozenset[str], recipe: Recipe) -> None:
        self._values = values
        self._roots = roots
        self._hidden = hidden
        self._recipe = recipe

    @property
    def catalog(self) -> str:
        """The catalog's name."""
        return self._recipe.name

    @property
    def blob_roots(self) -> tuple[str, ...]:
        """See `CatalogConfig.blob_roots`; no option of pypaimon, so no key of this mapping."""
        return self._roots

    def masked(self, error: BaseException) -> BaseException:
        """The error itself, or, where it or a cause of it shows a secret of these options, a plain one without.

        A driver's error may repeat the whole URL that it was given.
        """
        secrets = self._secrets()
        shown = "".join(f"{link!s}{link!r}" for link in causes(error, contexts=True))
        if not any(secret in shown for secret in secrets):
            return error
        text = f"{type(error).__name__}: {error}"
        for secret in secrets:
            text = text.replace(secret, MASK)
        return RuntimeError(text)

    def _secrets(self) -> list[str]:
        """Hidden values, and the passwords inside those that are URLs; the longest first."""
        hidden = [self._values[key] for key in self._hidden if key in self._values]
        parts = [part for value in hidden for match in PASSWORD.finditer(value) for part in match.groups() if part]
        return sorted((text for text in {*hidden, *parts} if len(text) >= _LEAST_SECRET), key=len, reverse=True)

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr({key: MASK if key in self._hidden else value for key, value in self._values.items()})

    def __eq__(self, other: object) -> bool:
        if isinstance(other, CatalogOptions):
            return (self._values, self._roots) == (other._values, other._roots)
        return Mapping.__eq__(self, other)

    def __hash__(self) -> int:
        return hash((frozenset(self._values.items()), self._roots))

    def __copy__(self) -> CatalogOptions:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> CatalogOptions:
        return self  # immutable; and dataclasses.asdict, which copies deeply, can't make a plain dict of it

    def __reduce__(self) -> tuple[Any, ...]:
        if not on_the_way():
            return _restore, (self._recipe,)
        return CatalogOptions, (self._values, self._roots, self._hidden, self._recipe)


@dataclass(frozen=True, repr=False)
class CatalogConfig:
    """The settings of one catalog, complete and checked; `lakehouse.config` says what happens to secrets.

    Attributes:
        options: Options for pypaimon, ``${VAR}`` expanded, a local warehouse as an absolute plain path.
    """

    options: CatalogOptions

    @property
    def name(self) -> str:
        """The catalog's name in the file; ``"default"`` for one that was given by options alone."""
        return self.options.catalog

    @property
    def warehouse(self) -> str:
        """An absolute plain path, an object store's URL, or (``metastore: rest``) a catalog's name on the server."""
        return self.options["warehouse"]

    @property
    def blob_roots(self) -> tuple[str, ...]:
        """Folders and URLs outside the tables that blob references may point into; empty: none."""
        return self.options.blob_roots

    def __repr__(self) -> str:
        return f"CatalogConfig(name={self.name!r}, options={self.options!r}, blob_roots={self.blob_roots!r})"


def assemble(recipe: Recipe) -> CatalogOptions:
    """Expands, checks and normalises the settings, which still have their secrets.

    Raises:
        ConfigError: A variable that isn't set, or values that no catalog could be made of.
    """
    values: dict[str, str] = {}
    roots: list[str] = []
    hidden: set[str] = set()
    for setting in recipe.settings:
        text, secret = setting.expand()
        if setting.key == BLOB_ROOTS:
            roots.append(setting.location(text))
            continue
        values[setting.key] = text
        if secret:
            hidden.add(setting.key)

    by_key = {setting.key: setting for setting in recipe.settings}
    metastore = values.get("metastore", "filesystem")
    if metastore not in METASTORES:
        what = f"metastore in {by_key['metastore'].where} is {metastore!r}"
        refuse(what, nearest(metastore, METASTORES), METASTORES)
    if values.get("token.provider", "dlf") not in ("dlf", "bear"):  # not shown: the token itself may have been put here
        raise ConfigError(f"token.provider in {by_key['token.provider'].where} is dlf, or bear for a bearer token.")
    for needed in ("warehouse",) if metastore == "filesystem" else ("warehouse", "uri"):
        if not values.get(needed, "").strip():
            raise ConfigError(
                f"Catalog {recipe.name!r} has no {needed}, which metastore {metastore} needs. "
                'For an embedded catalog: connect(warehouse="/data/lake").'
            )
    if metastore == "rest" and any(mark in values["uri"] for mark in "@?#"):  # paths are put behind it: it can have no query
        raise ConfigError(
            f"uri in {by_key['uri'].where} holds a user name or password, or a query, which logs and errors would show: "
            "use token.provider with token or dlf.*, or a header.* option."
        )
    if metastore != "rest":  # where it is a name
        values["warehouse"] = by_key["warehouse"].location(values["warehouse"], SCHEMES)
    kept = tuple(setting.without_secret() for setting in recipe.settings)
    return CatalogOptions(values, tuple(roots), frozenset(hidden), replace(recipe, settings=kept))


def on_the_way() -> bool:
    """Whether what is pickled now goes to another process at once: one being spawned, or, by Ray's own channel, one of Ray's.

    Ray ships arguments and results of tasks and actors by that channel, between processes of one cluster. What it pickles
    otherwise (a function with all that it closes over) is kept by its control store, and is no such case.
    """
    from multiprocessing.context import get_spawning_popen

    if get_spawning_popen() is not None:
        return True
    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    if worker is None or not getattr(worker, "connected", False):
        return False
    context = worker.get_serialization_context()
    return bool(getattr(context, "is_in_band_serialization", lambda: False)())


def _restore(recipe: Recipe) -> CatalogOptions:
    """Unpickles: reads again the secrets that a plain pickle left behind."""
    missing = [setting.key for setting in recipe.settings if setting.text is None]
    lost = [setting.key for setting in recipe.settings if setting.text is None and not setting.in_file]
    reason = "they were written out in Python code"
    texts: dict[str, str | None] = {}
    try:
        if missing and not lost and recipe.file is not None:
            _, profile = choose(read_document(recipe.file, "the catalog's config"), recipe.name, recipe.file)
            where = f"catalog {recipe.name!r} of {recipe.file}"
            texts = {setting.key: setting.text for setting in collect(profile, where, "", in_file=True)}
            lost = [key for key in missing if key not in texts]
            reason = f"{recipe.file} no longer has them"
        if not lost:
            settings = (replace(s, text=texts[s.key]) if s.text is None else s for s in recipe.settings)
            return assemble(replace(recipe, settings=tuple(settings)))
    except ConfigError as error:
        raise ConfigError(f"Catalog {recipe.name!r} was pickled without its secrets. {error}") from error
    raise ConfigError(
        f"Catalog {recipe.name!r} was pickled without its secrets {', '.join(lost)}, and {reason}. Write them as "
        "${VAR} and set that variable in this process too, or start the process by multiprocessing (spawn or "
        "forkserver), which carries them."
    )
