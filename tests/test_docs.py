"""What README.md, docs/*.md and docstrings show is run, so that it stays true.

The ``python`` blocks of one file are one program, run in an empty folder. ``<!-- no-run -->`` on the line before a block
(one that needs a server, say) leaves it at compiling.
"""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = [*sorted((ROOT / "lakehouse").rglob("*.py")), *sorted((ROOT / "udfs").rglob("*.py"))]

# Daft now and then crashes while the interpreter winds down, after all is done. A process that a block starts imports
# the program as another module than __main__ and goes on.
ENDING = "\nif __name__ == '__main__':\n    import os, sys\n    sys.stdout.flush()\n    os._exit(0)\n"


def programs(text: str) -> tuple[str, list[str]]:
    """(the blocks to run, each block that is only compiled), with every line at its line number in the page."""
    lines = text.splitlines()
    running = [""] * len(lines)
    compiled = []
    at = 0
    while at < len(lines):
        fence = re.match(r"(`{3,})(\w*)", lines[at])
        if fence is None:
            at += 1
            continue
        end = at + 1
        while end < len(lines) and not re.fullmatch(rf"{fence[1]}`*\s*", lines[end]):
            end += 1
        if fence[2] == "python":
            before = next((line.strip() for line in reversed(lines[:at]) if line.strip()), "")
            if before == "<!-- no-run -->":
                compiled.append("\n".join([""] * (at + 1) + lines[at + 1 : end]))
            else:
                running[at + 1 : end] = lines[at + 1 : end]
        at = end + 1
    return "\n".join(running), compiled


def run(program: str, name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As a file, so that classes of it can go to other processes, and tracebacks show its lines."""
    script = folder / f"{name}.py"
    script.write_text(program + ENDING, encoding="utf-8")
    empty = folder / "empty"
    empty.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    return subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs(page: Path, tmp_path: Path) -> None:
    program, compiled = programs(page.read_text(encoding="utf-8"))
    for block in compiled:
        compile(block, str(page), "exec")
    if program.strip():
        done = run(program, page.stem, tmp_path)
        assert done.returncode == 0, f"{page.name}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_readme_has_one_test_command() -> None:
    """`.ci/run` takes it from there."""
    text = README.read_text(encoding="utf-8")
    assert text.count("<!-- test-command -->") == 1
    block = re.search(r"^<!-- test-command -->\n+```\w*\n(.+?)^```", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert "constraints.txt" in block[1]
    assert "pytest" in block[1]


@pytest.mark.parametrize(
    "source",
    [path for path in SOURCES if re.search(r"^\s*>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)] or [None],
    ids=lambda path: str(path.relative_to(ROOT)) if path else "none",
)
def test_docstring_examples_run(
    source: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, road_frames: list[Path]
) -> None:
    """Each in an empty folder of its own, with the bytes of a frame as `jpeg_bytes`."""
    if source is None:
        return
    parts = source.relative_to(ROOT).with_suffix("").parts
    module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    given = {"jpeg_bytes": road_frames[0].read_bytes()}
    examples = doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=given)
    for number, example in enumerate(examples):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        runner.run(example, out=report.append)
    assert any(example.examples for example in examples)
    assert not runner.failures, "".join(report)


# ---- the test itself

PAGE = """# Title
```python
x = 1
```
text
````python
class A: pass
text = '''
```
'''
````
<!-- no-run -->

```python
import no_such_module
```
```bash
exit 1
```
```python
from pathlib import Path
assert (x, list(Path.cwd().iterdir())) == (1, [])
{ending}
```
"""


def test_blocks_share_a_namespace_and_an_empty_folder(tmp_path: Path) -> None:
    program, compiled = programs(PAGE.format(ending="print(A.__name__)"))
    assert [block.strip() for block in compiled] == ["import no_such_module"]
    done = run(program, "page", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "A\n", "")


@pytest.mark.parametrize(
    ("ending", "said"), [("1 / 0", "ZeroDivisionError"), ("raise SystemExit(3)", ""), ("x = = 1", "SyntaxError")]
)
def test_a_block_that_fails_is_seen_with_its_line(ending: str, said: str, tmp_path: Path) -> None:
    page = PAGE.format(ending=ending)
    done = run(programs(page)[0], "page", tmp_path)
    assert done.returncode != 0
    assert said in done.stderr
    line = page.splitlines().index(ending) + 1
    assert not said or f'page.py", line {line}' in done.stderr


def test_a_block_may_start_processes(tmp_path: Path) -> None:
    page = (
        "```python\nimport multiprocessing\ndef double(n):\n    return 2 * n\n```\n"
        "```python\nif __name__ == '__main__':\n    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [21]))\n```\n"
    )
    done = run(programs(page)[0], "page", tmp_path)
    assert (done.returncode, done.stdout) == (0, "[42]\n"), done.stderr
