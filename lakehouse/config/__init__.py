"""One catalog's settings: ``catalog.yaml``, ``${VAR}`` and keywords become a frozen `CatalogConfig`.

The file, which a mapping of the same form or one of flat options may stand for::

    catalogs:
      prod:
        metastore: rest
        dlf.access-key-secret: ${DLF_SECRET}
        blob_roots: [oss://raw-drives/2026]
    default: prod

Nothing is read at import. Options go to Paimon as strings, under the names that Paimon's documentation gives them. The
name of an option is checked where Paimon alone decides which exist; other systems' options pass.

Secrets: no ``repr``, error or JSON text shows one. Their values are pickled only while a process is being spawned
(`multiprocessing` with spawn or forkserver, as `lakehouse.Loader` does), or by Ray's own channel: arguments and results of
its tasks and actors. Any other pickle carries the recipe: the path of the file, the name of the catalog, the other options
with ``${VAR}`` unexpanded. Unpickling reads the secrets again from that file and the environment, and raises `ConfigError`
where it can't, as for one written out in Python code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lakehouse.config.catalog_config import CatalogConfig, CatalogOptions, Recipe, assemble
from lakehouse.config.options import meaning
from lakehouse.config.settings import Setting, choose, collect, read_document
from lakehouse.errors import ConfigError

__all__ = ["CatalogConfig", "CatalogOptions", "load_config"]

_VARIABLE = "LAKEHOUSE_CONFIG"


def load_config(
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> CatalogConfig:
    """Reads and checks the settings of one catalog.

    A relative path starts at the config file's folder, one given in Python at the working directory.

    Args:
        config: Path of a YAML file, or a mapping of the same form, or a flat mapping of options (without the key
            ``catalogs``). None: the file that ``$LAKEHOUSE_CONFIG`` names, else only ``options``.
        name: Which of the file's catalogs. None: its ``default``, or the only one it has.
        options: Paimon options and ``blob_roots``; they override the file. With ``warehouse`` or ``metastore`` among
            them and no ``name``, ``$LAKEHOUSE_CONFIG`` is ignored.

    Raises:
        ConfigError: A file that is missing or no YAML, an unknown key, a variable that isn't set, a value that no
            catalog could be made of.
    """
    given = dict(options or {})
    what = "the config given to connect()"
    if config is None and (name is not None or not {"warehouse", "metastore"} & given.keys()):
        config = os.environ.get(_VARIABLE) or None
        what = f"the config that ${_VARIABLE} names"

    label, file, settings = "default", None, list[Setting]()
    if isinstance(config, Mapping):
        where, profile = "the mapping given to connect()", config
        if "catalogs" in config:
            label, profile = choose(config, name, where)
            where = f"catalog {label!r} of {where}"
        elif name is not None:
            raise ConfigError(f"name={name!r} chooses among the `catalogs` of a config; {where} has no such key.")
        settings = collect(profile, where, str(Path.cwd()), in_file=False)
    elif isinstance(config, str | os.PathLike):
        file = os.path.abspath(os.path.expanduser(os.fsdecode(config)))  # noqa: PTH100, PTH111  Path raises RuntimeError
        label, profile = choose(read_document(file, what), name, file)
        settings = collect(profile, f"catalog {label!r} of {file}", str(Path(file).parent), in_file=True)
    elif config is not None:
        raise ConfigError(f"config is a path or a mapping, got {type(config).__name__}.")
    elif name is not None:
        raise ConfigError(f"name={name!r} chooses from a config: pass one to connect(), or set ${_VARIABLE} to its path.")

    overridden = {meaning(key) for key in given if isinstance(key, str)}
    settings = [setting for setting in settings if meaning(setting.key) not in overridden]
    settings += collect(given, "the keywords given to connect()", str(Path.cwd()), in_file=False)
    if config is None and not settings:
        raise ConfigError(
            f"No catalog to connect to: no config was given, ${_VARIABLE} is not set, and there are no options. "
            'For an embedded catalog: connect(warehouse="/data/lake").'
        )
    return CatalogConfig(assemble(Recipe(label, file, tuple(settings))))
