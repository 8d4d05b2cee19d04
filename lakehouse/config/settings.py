"""Options as they were written: read from a file or a mapping, names checked, ``${VAR}`` not yet expanded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lakehouse.config.options import BLOB_ROOTS, KNOWN, SCHEMES, TOP_LEVEL, check_key, is_secret, kind, nearest, refuse
from lakehouse.errors import ConfigError, cause_line

_VARIABLE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)\})?")
PASSWORD = re.compile(
    r"//[^\s?#]*?:([^\s?#]+)@|[?&;](?:password|passwd|pwd|secret|token|sig|x-amz-[a-z]+)=([^&;]+)", re.IGNORECASE
)
_QUOTED = re.compile(r"'([^']*)'|\"[^\"]*\"")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?([^/]*)")


@dataclass(frozen=True)
class Setting:
    """One option, or one of the ``blob_roots``.

    Attributes:
        text: As written; None: a secret that a plain pickle left behind.
        where: For errors: ``catalog 'prod' of /etc/catalog.yaml``.
        folder: Where a relative path starts.
        in_file: Whether it can be read again from the config file.
    """

    key: str
    text: str | None = field(repr=False)
    where: str
    folder: str
    in_file: bool

    def without_secret(self) -> Setting:
        """A copy fit for a plain pickle: a secret stays only where it is nothing but ``${VAR}``."""
        text = self.text or ""
        literal = _VARIABLE.sub("", text)
        if not is_secret(self.key) and not PASSWORD.search(literal):
            return self
        return self if text.startswith("${") and not literal.strip() else replace(self, text=None)

    def expand(self) -> tuple[str, bool]:
        """The text with its ``${VAR}`` replaced, and whether it is to be hidden.

        Raises:
            ConfigError: A variable that isn't set, or ``${`` without a name.
        """
        secret = is_secret(self.key)

        def value_of(match: re.Match[str]) -> str:
            nonlocal secret
            if match[0] == "$${":
                return "${"
            if match[1] is None:
                raise ConfigError(
                    f"{self.key} in {self.where} holds a ${{ that is not ${{NAME}} (no defaults, no nesting). "
                    "A literal ${ is written $${."
                )
            if match[1] not in os.environ:
                raise ConfigError(f"{self.key} in {self.where} needs ${{{match[1]}}}, which is not set in the environment.")
            secret = secret or is_secret(match[1])
            return os.environ[match[1]]

        text = _VARIABLE.sub(value_of, self.text or "")
        return text, secret or PASSWORD.search(text) is not None

    def location(self, text: str, schemes: tuple[str, ...] | None = None) -> str:
        """This setting's place: a local one as an absolute plain path, another as a checked URL.

        pypaimon writes to one folder and reads from another when given `~` or a file URL with `%20`.

        Args:
            text: The expanded text.
            schemes: The schemes allowed; None: any.

        Raises:
            ConfigError: Empty, not absolute where it must be, of an unknown scheme, or with a password inside.
        """
        what = f"{self.key} in {self.where}"
        if not text.strip() or "\0" in text:
            raise ConfigError(f"{what} is empty or holds a null character.")
        url = _URL.match(text)
        if url and url[1].lower() == "file":
            if (url[2] and url[3] not in ("", "localhost")) or not text[url.end() :].startswith("/"):
                raise ConfigError(f"{what}: a file URL reads file:///absolute/path, got {text!r}.")
            text = unquote(text[url.end() :])
        elif url and (url[2] or url[1].lower() in SCHEMES):
            return self._remote(what, text, url, schemes)
        path = os.path.expanduser(text)  # noqa: PTH111  Path raises RuntimeError
        if path.startswith("~"):
            raise ConfigError(f"{what}: no home folder is known for {text!r}. A name that starts with ~ is written ./~.")
        return "/" + os.path.abspath(os.path.join(self.folder, path)).lstrip("/")  # noqa: PTH100  keeps symbolic links

    def _remote(self, what: str, text: str, url: re.Match[str], schemes: tuple[str, ...] | None) -> str:
        scheme, bucket = url[1].lower(), url[3]
        if ":" in bucket.rpartition("@")[0]:
            raise ConfigError(f"{what} holds a password, which every path and error would show: use the options for keys.")
        if schemes is not None and scheme not in schemes:
            near = nearest(scheme, schemes)
            refuse(f"{what}: Paimon can't open {scheme}://", near and f"{near}://", [f"{known}://" for known in schemes])
        if not url[2] or (not bucket and scheme not in ("hdfs", "viewfs")):
            raise ConfigError(f"{what}: expected {scheme}://bucket/path, got {text!r}.")
        return scheme + text[len(scheme) :].rstrip("/")


def collect(profile: Mapping[str, Any], where: str, folder: str, *, in_file: bool) -> list[Setting]:
    """Checks the names and turns the values to text.

    Raises:
        ConfigError: An unknown option, or a value that is no string, number or boolean.
    """
    settings: list[Setting] = []
    for key, value in profile.items():
        if not isinstance(key, str):
            raise ConfigError(f"An option's name is a string, got {kind(key)} in {where}.")
        check_key(key, value, where)
        values: Iterable[Any] = (value,)
        if key == BLOB_ROOTS:
            if not isinstance(value, list | tuple):
                raise ConfigError(f"{key} in {where} is a list, as in [/data/frames], got {kind(value)}.")
            values = value
        settings.extend(Setting(key, _text(item, key, where), where, folder, in_file) for item in values)
    return settings


def _text(value: Any, key: str, where: str) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise ConfigError(f"{key} in {where} is a string, number or boolean, got {kind(value)}.")


def choose(document: Mapping[str, Any], name: str | None, where: str) -> tuple[str, Mapping[str, Any]]:
    """The catalog asked for, else the default, else the only one: (its name, its options).

    Raises:
        ConfigError: No such catalog, none to choose by default, or a document of another form.
    """
    for key in document:
        if key not in TOP_LEVEL:
            hint = "options stand under `catalogs: NAME:`." if key in KNOWN else None
            refuse(f"Unknown key {key!r} in {where}", nearest(str(key), TOP_LEVEL), TOP_LEVEL, hint)
    catalogs = document.get("catalogs")
    if not isinstance(catalogs, Mapping) or not catalogs:
        raise ConfigError(f"`catalogs` in {where} is a mapping of names to options, got {kind(catalogs)}.")
    names = [str(key) for key in catalogs]
    chosen = name if name is not None else document.get("default")
    if chosen is None:
        if len(names) > 1:
            raise ConfigError(f"{where} has several catalogs and no `default`: pass name=, one of {', '.join(names)}.")
        chosen = names[0]
    if not isinstance(chosen, str) or chosen not in catalogs:
        refuse(f"No catalog {chosen!r} in {where}", nearest(str(chosen), names), names)
    profile = catalogs[chosen]
    if not isinstance(profile, Mapping):
        raise ConfigError(f"Catalog {chosen!r} of {where} is a mapping of options, got {kind(profile)}.")
    return chosen, profile


def read_document(file: str, what: str) -> Mapping[str, Any]:
    """The mapping that a YAML file holds.

    Raises:
        ConfigError: The file can't be read, is no YAML, or holds no mapping.
    """
    try:
        data = Path(file).read_bytes()
    except IsADirectoryError as error:
        hint = f"a folder of tables is a warehouse: connect(warehouse={str(file)!r})"
        raise ConfigError(f"Can't read {what}: {file} is a folder, not a file; {hint}.") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"Can't read {what}: looked for {file} ({cause_line(error)}).") from error
    document = _parse_yaml(data, file)
    if not isinstance(document, Mapping):
        raise ConfigError(f"{file} is a mapping with `catalogs:` on top, got {kind(document)}.")
    return document


def _parse_yaml(data: bytes, file: str) -> Any:
    """YAML, its scalars as they were written: 0123, 1_000, 12:30 and `yes` stay text, for they may be passwords."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  so it is in PyYAML

        def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        raise yaml.MarkedYAMLError(problem=f"a second {key.value}", problem_mark=key.start_mark)
                    seen.add(key.value)
            return node

    resolve = Loader.add_implicit_resolver
    resolve("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
    resolve("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
    resolve("tag:yaml.org,2002:merge", re.compile(r"^<<$"), ["<"])

    # Raised after the except clauses: PyYAML's own error, which would be chained, quotes the line and so a secret.
    line = column = 0
    text = ""
    try:
        text = data.decode("utf-8-sig")
        return Loader(text).get_single_data()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column, problem = before.count(b"\n"), len(before) - before.rfind(b"\n") - 1, "not UTF-8"
    except yaml.reader.ReaderError as error:
        start = text[: error.position]
        line, column, problem = start.count("\n"), len(start) - start.rfind("\n") - 1, "a character that YAML refuses"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark:
            line, column = mark.line, mark.column
        problem = _QUOTED.sub(_own_word, error.problem or "malformed")
    except RecursionError:
        problem = "nested too deep"
    raise ConfigError(f"{file}, line {line + 1}, column {column + 1}: not valid YAML: {problem}.")


def _own_word(match: re.Match[str]) -> str:
    """A word quoted by PyYAML, if it is punctuation or '<block end>'; any other comes from the file."""
    word = match[1] or ""
    return match[0] if len(word) == 1 or word.startswith("<") else "..."
