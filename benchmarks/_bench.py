"""Runs variants of a benchmark in turn, each in a fresh process, and prints medians and ratios.

A script describes its variants as functions of the parsed options that return `(samples, seconds)` or named measures; `main`
calls the script itself for each run, so that no variant inherits another's caches, threads or memory. Variants alternate:
the machine may be shared and noisy, and a slow minute then hits all of them. Read the ratios, not the seconds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Measures = Mapping[str, float]
Variant = Callable[[argparse.Namespace], "Measures | tuple[int, float]"]
Runs = Mapping[str, Sequence[Measures]]

_RESULT = "RESULT "  # some libraries print on their own


def main(
    what: str,
    variants: Mapping[str, Variant] | Callable[[argparse.Namespace], Mapping[str, Variant]],
    prepare: Callable[[argparse.Namespace], str],
    default_data: str | Callable[[argparse.Namespace], str],
    runs: int = 5,
    *,
    warm_up: bool = True,
    needs: Mapping[str, str] | None = None,
    options: Callable[[argparse.ArgumentParser], None] | None = None,
    report: Callable[[Runs], None] | None = None,
    clean: Callable[[argparse.Namespace], None] | None = None,
) -> None:
    """Measure and print.

    Args:
        what: what is measured.
        variants: name to function; ratios are to the first. Or what makes these of the parsed options.
        prepare: makes the data where it is absent, and describes it.
        default_data: name of the data's folder below the temporary folder.
        runs: of each variant, unless ``--runs`` says otherwise.
        warm_up: do one run of each before those that count.
        needs: variant to the module that must be installed; without it the variant is skipped by name.
        options: adds the script's own options.
        report: prints the results. Default: rates.
        clean: called at the end.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--data", type=Path, help="folder of the data, made when absent")
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--only", nargs="*", help="variants to run")
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    if options:
        options(parser)
    args = parser.parse_args()
    if not isinstance(variants, Mapping):
        variants = variants(args)
    name = default_data if isinstance(default_data, str) else default_data(args)
    args.data = args.data or Path(os.environ.get("TMPDIR", "/tmp")) / name
    if args.variant:
        print(_RESULT + json.dumps(measured(variants[args.variant], args)), flush=True)
        return
    chosen, absent = select(list(variants), args.only, needs or {})
    args.chosen = chosen
    header(what, prepare(args), args.data)
    for name in absent:
        print(f"skipped: {name} ({(needs or {})[name]} is not installed)")
    results: dict[str, list[Measures]] = {name: [] for name in chosen}
    try:
        for run in range(args.runs + warm_up):
            for name in chosen:
                result = fresh(name, args.data)
                print(f"{run + 1 - warm_up}/{args.runs} {name}: {result['wall']:.1f} s", file=sys.stderr, flush=True)
                if run >= warm_up:  # the first of each warms the files
                    results[name].append(result)
        (report or rates)(results)
    finally:
        if clean:
            clean(args)


def select(names: Sequence[str], only: Sequence[str] | None, needs: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The variants to run, and those whose module is not installed."""
    unknown = sorted(set(only or ()) - set(names))
    if unknown:
        sys.exit(f"no variant {', '.join(unknown)}; there are: {', '.join(names)}")
    wanted = [name for name in names if not only or name in only]
    absent = [name for name in wanted if name in needs and importlib.util.find_spec(needs[name]) is None]
    return [name for name in wanted if name not in absent], absent


def measured(variant: Variant, args: argparse.Namespace) -> Measures:
    """Runs a variant in this process."""
    result = variant(args)
    measures = dict(result) if isinstance(result, Mapping) else {"samples": result[0], "seconds": result[1]}
    usage = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    measures["cpu"] = sum(part.ru_utime + part.ru_stime for part in usage)
    measures["rss_mib"] = peak_mib()
    return measures


def status_mib(name: str) -> float:
    """A line of /proc/self/status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) / 1024


def peak_mib() -> float:
    """Peak memory of this process alone: what getrusage tells begins with the parent's."""
    return status_mib("VmHWM")


def fresh(variant: str, data: Path) -> Measures:
    """Runs a variant in a process of its own, with the options of this one."""
    start = time.perf_counter()
    command = [sys.executable, "-W", "ignore", *sys.argv, "--data", str(data), "--variant", variant]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in out.stdout.splitlines() if line.startswith(_RESULT)]
    if out.returncode or not lines:
        sys.exit(f"{variant} failed:\n{out.stdout[-2000:]}\n{out.stderr[-6000:]}")
    return {**json.loads(lines[-1][len(_RESULT) :]), "wall": time.perf_counter() - start}


def header(what: str, data: str, path: Path) -> None:
    """What was measured, on what, by which code."""
    folder = Path(__file__).parent
    git = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    print(f"# {what}")
    print(f"command: python {' '.join(sys.argv)}")
    print(f"data: {data} ({path})")
    print(
        f"machine: {len(os.sched_getaffinity(0))} cores, {cpu_name()}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}; commit {commit or 'unknown'}",
        flush=True,
    )


def cpu_name() -> str:
    """The processor as Linux names it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def median(rows: Sequence[Measures], key: str) -> float:
    """Of one measure over the runs."""
    return statistics.median(row[key] for row in rows)


def rates(results: Runs) -> None:
    """Samples a second, CPU and memory; the ratio is to the first variant."""
    print(f"\n{'variant':<30}{'samples/s (median, min-max)':>32}{'process CPU s':>15}{'wall s':>9}{'RSS MiB':>9}{'ratio':>8}")
    first = None
    for name, rows in results.items():
        each = sorted(row["samples"] / row["seconds"] for row in rows)
        rate = statistics.median(each)
        first = first or rate
        spread = f"{rate:,.0f} ({each[0]:,.0f}-{each[-1]:,.0f})"
        cpu, wall, rss = (median(rows, key) for key in ("cpu", "wall", "rss_mib"))
        print(f"{name:<30}{spread:>32}{cpu:>15.2f}{wall:>9.2f}{rss:>9.0f}{rate / first:>8.3f}")


def values(results: Runs, columns: Sequence[str], ratio: str | None = None) -> None:
    """Medians of named measures, one row a variant.

    Args:
        results: measures of each run.
        columns: which measures, in order.
        ratio: the measure whose ratio to the first variant's is added.
    """
    widths = [max(12, len(column) + 2) for column in columns]
    print(f"\n{'variant':<30}" + "".join(f"{column:>{width}}" for column, width in zip(columns, widths, strict=True)), end="")
    print(f"{'ratio':>8}" if ratio else "")
    first = None
    for name, rows in results.items():
        cells = "".join(f"{shown(median(rows, key)):>{width}}" for key, width in zip(columns, widths, strict=True))
        print(f"{name:<30}{cells}", end="")
        if ratio:
            first = first or median(rows, ratio)
            print(f"{median(rows, ratio) / first:>8.3f}", end="")
        print()


def shown(value: float) -> str:
    """Whole numbers with separators, others with four digits that count."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 10_000 else f"{value:.4g}"
