"""Runs variants of a benchmark in turn, each in a fresh process, and prints medians and ratios.

A script describes its variants as functions that return `(samples, seconds)`; `main` calls itself for each run, so that no
variant inherits another's caches, threads or memory. The machine is shared and noisy: read the ratios, not the seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

Variant = Callable[[Path], tuple[int, float]]


def main(what: str, variants: Mapping[str, Variant], prepare: Callable[[Path], str], default_data: str, runs: int = 5) -> None:
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("TMPDIR", "/tmp")) / default_data, help="made when absent")
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--only", nargs="*", help="variants to run")
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.variant:
        samples, seconds = variants[args.variant](args.data)
        usage = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = sum(part.ru_utime + part.ru_stime for part in usage)
        print(json.dumps({"samples": samples, "seconds": seconds, "cpu": cpu, "rss_mib": usage[0].ru_maxrss / 1024}))
        return
    chosen = args.only or list(variants)
    header(what, prepare(args.data), args.data)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for run in range(args.runs + 1):
        for name in chosen:
            start = time.perf_counter()
            command = [sys.executable, sys.argv[0], "--data", str(args.data), "--variant", name]
            out = subprocess.run(command, capture_output=True, text=True, check=False)
            if out.returncode:
                sys.exit(f"{name} failed:\n{out.stderr}")
            result = json.loads(out.stdout.strip().splitlines()[-1])
            result["wall"] = time.perf_counter() - start
            if run:  # the first of each warms the files
                results[name].append(result)
    report(results)


def header(what: str, data: str, path: Path) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    print(f"# {what}")
    print(f"command: python {' '.join(sys.argv)}")
    print(f"data: {data} ({path})")
    print(f"machine: {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; commit {commit or 'unknown'}")


def report(results: Mapping[str, list[dict[str, float]]]) -> None:
    print(f"\n{'variant':<28}{'samples/s (median, min-max)':>34}{'process CPU s':>15}{'wall s':>9}{'RSS MiB':>9}{'ratio':>8}")
    first = None
    for name, rows in results.items():
        rates = sorted(row["samples"] / row["seconds"] for row in rows)
        median = statistics.median(rates)
        first = first or median
        cpu, wall, rss = (statistics.median(row[key] for row in rows) for key in ("cpu", "wall", "rss_mib"))
        spread = f"{median:,.0f} ({rates[0]:,.0f}-{rates[-1]:,.0f})"
        print(f"{name:<28}{spread:>34}{cpu:>15.2f}{wall:>9.2f}{rss:>9.0f}{median / first:>8.3f}")
