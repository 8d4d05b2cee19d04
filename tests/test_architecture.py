"""Who may import whom, and what may be imported where: the sources are parsed and compared with the tables below."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# `A -> B` reads "A imports B". A package counts as one module. Everyone imports errors; `__init__` and testing import all.
EDGES = """
catalog    -> config, database, failures, names, oss, schema, served, stores, table, upstream, upstream_store, registry, warehouse
upstream_store -> fetch, stores
failures   -> config, served
database   -> durable, upstream, warehouse
warehouse  -> durable, upstream
changes    -> query, scan, write, schema, references, fetch, upstream, durable
table      -> changes, identity, names, schema, query, fetch, scan, index, stores, upstream, write, history, compaction, upkeep, check
registry   -> fetch, index, names, order, query, scan, schema, upstream, write
compaction -> blobfile, durable, identity, query, scan, upkeep, upstream, write
history    -> schema, scan, served, fetch, upstream, index, query, durable
identity   -> schema, upstream
write      -> schema, fetch, served, upstream, durable, identity
upstream   -> served, durable
upkeep     -> upstream, write, durable
check      -> upkeep, scan, blobfile, fetch, references, upstream
query      -> index, scan, fetch, schema, references, upstream
scan       -> upstream, fetch, schema, blobfile, stores
index      -> fetch, references, stores
stores     -> fetch
references -> fetch
dataset    -> index, order, shard, fetch, decode, cache
cache      -> fetch
loader     -> dataset, shard
mixture    -> index, order, fetch
"""
LEAVES = ("errors", "config", "names", "schema", "oss", "served", "durable", "blobfile", "order", "shard", "fetch", "decode")
ANYTHING = ("__init__", "testing")

# A library that is named here is imported nowhere else. "lazily": inside functions, or in a submodule that only functions
# import, so that importing the module does not load the library.
LIBRARIES: dict[str, dict[str, str]] = {
    "pypaimon": dict.fromkeys(
        (
            *("catalog", "schema", "table", "query", "index", "scan", "references", "fetch", "served", "upstream", "write"),
            "oss",
            "history",
            "compaction",
            "changes",
            "upkeep",
            "upstream_store",
            "warehouse",
            "database",
            "check",
        ),
        "anywhere",
    ),
    "daft": {"query": "lazily", "table": "lazily", "udfs": "anywhere"},
    "torch": dict.fromkeys(("dataset", "loader", "testing"), "anywhere"),
    "PIL": {"decode": "lazily", "udfs": "anywhere"},
    "simplejpeg": {"decode": "lazily", "udfs": "anywhere"},
    "yaml": {"config": "lazily"},
    "obstore": {"stores": "lazily"},
    "botocore": {"stores": "lazily"},
}
SAME_LIBRARY = {"torchdata": "torch", "torchvision": "torch", "pypaimon.daft": "daft"}


@dataclass(frozen=True)
class Import:
    """One import statement (or `import_module("literal")`): who, whom, where."""

    file: str  # dotted name of the importing module
    target: str
    line: int
    in_function: bool
    for_typing: bool  # under `if TYPE_CHECKING:`, so never at run time

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: imports {self.target}"


def imports_of(source: str, file: str, *, is_package: bool) -> Iterator[Import]:
    package = file if is_package else file.rpartition(".")[0]

    def walk(node: ast.AST, in_function: bool, for_typing: bool) -> Iterator[Import]:
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            targets = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                targets = [node.args[0].value]
        for target in targets:
            yield Import(file, target, getattr(node, "lineno", 0), in_function, for_typing)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statement in node.body:
                yield from walk(statement, in_function, for_typing=True)
            for statement in node.orelse:
                yield from walk(statement, in_function, for_typing)
            return
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside, for_typing)

    return walk(ast.parse(source), in_function=False, for_typing=False)


@dataclass(frozen=True)
class Project:
    """Parsed modules, by dotted name."""

    modules: dict[str, tuple[Import, ...]]

    @staticmethod
    def parse(sources: dict[str, str]) -> Project:
        """Of {path like ``lakehouse/table/rows.py``: text}."""
        modules = {}
        for path, text in sources.items():
            parts = list(Path(path).with_suffix("").parts)
            is_package = parts[-1] == "__init__"
            file = ".".join(parts[:-1] if is_package else parts)
            modules[file] = tuple(imports_of(text, file, is_package=is_package))
        return Project(modules)

    def module_of(self, target: str) -> str | None:
        """The module of ours that a dotted target names, or that holds the name it ends with."""
        while target and target not in self.modules:
            target = target.rpartition(".")[0]
        return target or None

    def all(self) -> Iterator[Import]:
        for imports in self.modules.values():
            yield from imports

    def edges(self) -> dict[tuple[str, str], Import]:
        """(importing node, imported node), both of lakehouse, at run time."""
        edges = {}
        for item in self.all():
            target = self.module_of(item.target)
            if item.for_typing or target is None or target.startswith("udfs") or item.file.startswith("udfs"):
                continue
            pair = (node_of(item.file), node_of(target))
            if pair[0] != pair[1]:
                edges[pair] = item
        return edges

    def loaded_with(self, node: str) -> set[str]:
        """The node's own modules that importing it loads: those that nothing but functions imports are left out."""
        front = "lakehouse" if node == "__init__" else "udfs" if node == "udfs" else f"lakehouse.{node}"
        loaded: set[str] = set()
        waiting = [front]
        while waiting:
            file = waiting.pop()
            if file in loaded or file not in self.modules or node_of(file) != node:
                continue
            loaded.add(file)
            for item in self.modules[file]:
                if not item.in_function and not item.for_typing:
                    waiting.append(self.module_of(item.target) or "")
        return loaded


def node_of(file: str) -> str:
    parts = file.split(".")
    return "udfs" if parts[0] == "udfs" else parts[1] if len(parts) > 1 else "__init__"


def allowed_edges() -> dict[str, set[str]]:
    allowed: dict[str, set[str]] = {leaf: set() for leaf in LEAVES}
    for line in EDGES.strip().splitlines():
        node, _, targets = line.partition("->")
        allowed[node.strip()] = {target.strip() for target in targets.split(",")}
    everything = {*allowed, *ANYTHING}
    for node in allowed:
        allowed[node] |= {"errors"} - {node}
    for node in ANYTHING:
        allowed[node] = everything - {node, "__init__"}
    allowed["testing"].add("__init__")  # as its users do
    return allowed


def wrong_edges(project: Project) -> list[str]:
    allowed = allowed_edges()
    return [str(item) for (node, target), item in project.edges().items() if target not in allowed.get(node, ())]


def crossings(project: Project) -> list[str]:
    """Between the two packages there is nothing, not even for typing."""
    return [
        str(item)
        for item in project.all()
        if {item.file.partition(".")[0], item.target.partition(".")[0]} == {"lakehouse", "udfs"}
    ]


def cyclic(edges: Iterable[tuple[str, str]]) -> list[str]:
    """Nodes on a cycle or leading to one: what is left after taking away, again and again, what imports nothing left."""
    targets: dict[str, set[str]] = {}
    for node, target in edges:
        targets.setdefault(node, set()).add(target)
        targets.setdefault(target, set())
    while free := {node for node, to in targets.items() if not to & targets.keys()}:
        targets = {node: to for node, to in targets.items() if node not in free}
    return sorted(targets)


def misplaced_libraries(project: Project) -> list[str]:
    wrong = []
    for item in project.all():
        if item.for_typing:
            continue
        first = item.target.partition(".")[0]
        also = [library for name, library in SAME_LIBRARY.items() if f"{item.target}.".startswith(f"{name}.")]
        for library in {first, *also} & LIBRARIES.keys():
            node = node_of(item.file)
            place = LIBRARIES[library].get(node)
            at_import = not item.in_function and item.file in project.loaded_with(node)
            if place is None or (place == "lazily" and at_import):
                wrong.append(str(item))
    return wrong


@cache
def project() -> Project:
    paths = [path for folder in ("lakehouse", "udfs") for path in sorted((ROOT / folder).rglob("*.py"))]
    return Project.parse({str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths})


# ---- the project


def test_every_module_has_its_line_and_every_line_its_module() -> None:
    nodes = {node_of(file) for file in project().modules} - {"udfs"}
    assert sorted(nodes) == sorted(allowed_edges())


def test_edges() -> None:
    assert wrong_edges(project()) == []


def test_lakehouse_and_udfs_do_not_meet() -> None:
    assert "lakehouse" in project().modules
    assert "udfs" in project().modules
    assert crossings(project()) == []


def test_no_cycles() -> None:
    lazy_front = [pair for pair in project().edges() if "__init__" not in pair]
    assert cyclic(lazy_front) == []
    assert not cyclic(
        (node, target) for node, targets in allowed_edges().items() for target in targets if node != "__init__" != target
    )


def test_libraries() -> None:
    assert misplaced_libraries(project()) == []


def test_all_code_is_in_the_two_packages() -> None:
    """A package without `__init__.py` would not be installed; a folder that pyproject.toml leaves out neither."""
    for path in (*(ROOT / "lakehouse").rglob("*.py"), *(ROOT / "udfs").rglob("*.py")):
        assert (path.parent / "__init__.py").exists(), path


# ---- importing


def fresh(code: str, repeat: int = 1) -> list[dict[str, object]]:
    """What `code` leaves in the variable `answer`, in interpreters of their own."""
    program = f"import json, sys, time\n{code}\nprint(json.dumps(answer))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    runs = [subprocess.run(command, check=False, env=environment, capture_output=True, text=True) for _ in range(repeat)]
    assert [run.stderr for run in runs if run.returncode] == []
    return [json.loads(run.stdout.splitlines()[-1]) for run in runs]


def test_import_is_quick_and_loads_no_heavy_library() -> None:
    runs = fresh(
        "start = time.perf_counter()\n"
        "import lakehouse\n"
        "answer = {'s': time.perf_counter() - start, 'file': lakehouse.__file__, 'modules': sorted(sys.modules)}",
        repeat=5,  # the best counts: the machine may be busy
    )
    assert runs[0]["file"] == str(ROOT / "lakehouse" / "__init__.py")
    loaded = runs[0]["modules"]
    assert isinstance(loaded, list)
    assert not {"torch", "daft", "pypaimon", "pandas", "PIL", "simplejpeg"} & set(loaded)
    assert min(float(str(run["s"])) for run in runs) < 0.3


def test_public_names_exist_and_unknown_ones_do_not() -> None:
    (answer,) = fresh(
        "import lakehouse\n"
        "answer = {'missing': [n for n in lakehouse.__all__ if not hasattr(lakehouse, n)], 'n': len(lakehouse.__all__),\n"
        "          'hidden': sorted(set(lakehouse.__all__) - set(dir(lakehouse))), 'made_up': hasattr(lakehouse, 'no_such_name')}"
    )
    assert answer["missing"] == answer["hidden"] == []
    assert int(str(answer["n"])) > 10
    assert answer["made_up"] is False


# ---- the check itself: each rule finds its violation

GOOD = {
    "lakehouse/__init__.py": "def __getattr__(name):\n    from lakehouse.catalog import connect\n    return connect\n",
    "lakehouse/errors.py": "",
    "lakehouse/catalog.py": "from lakehouse.table import Table\nfrom . import config\nimport pypaimon\n",
    "lakehouse/config.py": "def f():\n    import yaml\n",
    "lakehouse/query/__init__.py": "def f():\n    from lakehouse.query import engine\n    from .engine import daft\n",
    "lakehouse/query/engine.py": "import daft\n",
    "lakehouse/table/__init__.py": "from .rows import x\n",
    "lakehouse/table/rows.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import daft\n    from lakehouse.catalog import C\n",
    "udfs/__init__.py": "import PIL.Image\nimport daft\n",
}


def test_the_check_accepts_what_is_right() -> None:
    good = Project.parse(GOOD)
    assert not [*wrong_edges(good), *crossings(good), *misplaced_libraries(good), *cyclic(good.edges())]
    assert set(good.edges()) == {("__init__", "catalog"), ("catalog", "table"), ("catalog", "config")}
    assert [item.target for item in good.modules["lakehouse.table.rows"] if item.for_typing] == [
        "daft",
        "lakehouse.catalog.C",
    ]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("lakehouse/table/rows.py", "from lakehouse.catalog import connect"),
        ("lakehouse/table/rows.py", "from .. import catalog"),
        ("lakehouse/table/rows.py", "from ..catalog import connect"),
        ("lakehouse/table/rows.py", "def f():\n    import lakehouse.catalog"),
        ("lakehouse/table/rows.py", "import importlib\nimportlib.import_module('lakehouse.catalog')"),
        ("lakehouse/errors.py", "import lakehouse"),
        ("lakehouse/config.py", "from lakehouse import catalog"),
        ("lakehouse/new.py", "from lakehouse.catalog import connect"),
    ],
)
def test_the_check_finds_a_wrong_edge(path: str, text: str) -> None:
    assert len(wrong_edges(Project.parse({**GOOD, path: text}))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("lakehouse/catalog.py", "from udfs.image import decode"),
        ("lakehouse/catalog.py", "if TYPE_CHECKING:\n    import udfs"),
        ("udfs/image.py", "def f():\n    import lakehouse"),
    ],
)
def test_the_check_finds_a_crossing(path: str, text: str) -> None:
    assert len(crossings(Project.parse({**GOOD, path: text}))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("lakehouse/query/__init__.py", "import daft"),
        ("lakehouse/query/__init__.py", "class A:\n    from daft import col"),
        (
            "lakehouse/query/__init__.py",
            "try:\n    from pypaimon.daft import read_paimon\nexcept ImportError:\n    pass",
        ),
        ("lakehouse/query/__init__.py", "from . import engine"),  # which loads daft
        ("lakehouse/config.py", "def f():\n    import daft"),
        ("lakehouse/config.py", "import yaml"),
        ("lakehouse/config.py", "import pypaimon.catalog"),
        ("lakehouse/catalog.py", "def f():\n    __import__('yaml')"),
        ("lakehouse/catalog.py", "def f():\n    import torch"),
        ("lakehouse/fetch.py", "from torchdata.nodes import Loader"),
        ("lakehouse/decode.py", "from PIL import Image"),
        ("lakehouse/decode.py", "if not TYPE_CHECKING:\n    import simplejpeg"),
        ("lakehouse/decode.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import simplejpeg"),
        ("udfs/image.py", "import torch"),
    ],
)
def test_the_check_finds_a_misplaced_library(path: str, text: str) -> None:
    assert len(misplaced_libraries(Project.parse({**GOOD, path: text}))) == 1


def test_the_check_finds_a_cycle() -> None:
    assert cyclic([("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("a", "e")]) == ["a", "b", "c", "d"]
    assert not cyclic([("a", "b"), ("b", "c"), ("a", "c")])
