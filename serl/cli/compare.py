"""`serl compare`: configurations over tasks and seeds, as text and as a page."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.table import Table

from serl.cli.arguments import integer
from serl.cli.sweep import train_all
from serl.errors import BadInput, SerlError
from serl.report import comparison as comparisons
from serl.report.comparison import METRICS, Comparison, MetricName
from serl.report.comparison_page import (
    COLOURS,
    heads,
    remarks,
    result_rows,
    setting_rows,
    write_comparison,
)
from serl.report.display import Display
from serl.report.outcomes import (
    Configuration,
    check_claim,
    check_factor,
    differences,
    read_configuration,
)
from serl.report.sequential import SeedPlan, sequential_test
from serl.runs.sweep import read_sweep, sweep_runs
from serl.system.files import check_destination


def compare_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl compare`."""
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="folder with the finished runs of one configuration, over tasks and seeds; the first "
        "folder is the baseline",
    )
    parser.add_argument(
        "--metric",
        choices=get_args(MetricName),
        default="success",
        help="metric of the verdict; the table has all metrics",
    )
    parser.add_argument(
        "--factor",
        action="append",
        default=[],
        metavar="NAME",
        help="setting, or group of settings, that may differ between the folders, else any one may",
    )
    parser.add_argument(
        "--claim",
        action="store_true",
        help="require at least 5 seeds, all from 100 on, for each task and configuration",
    )
    parser.add_argument(
        "--adaptive",
        nargs="?",
        type=Path,
        const=Path(),
        metavar="FILE",
        help="test after each block of seeds whether more seeds are needed; with FILE, the file "
        "of the folders' sweep, train these seeds",
    )
    plan = SeedPlan()
    parser.add_argument(
        "--block", type=int, default=plan.block, metavar="N", help="number of seeds in a block"
    )
    parser.add_argument(
        "--blocks", type=int, default=plan.blocks, metavar="N", help="largest number of blocks"
    )
    parser.add_argument(
        "--jobs",
        type=integer(1),
        default=1,
        metavar="N",
        help="number of concurrent trainings of --adaptive",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("compare.html"), metavar="FILE", help="page to write"
    )


def compare(options: argparse.Namespace) -> int:
    """Compare configurations; print a summary and write a page.

    Raises:
        BadInput: the runs cannot be compared.
    """
    plan = SeedPlan(options.block, options.blocks).checked()
    if options.adaptive is None and (plan != SeedPlan() or options.jobs > 1):
        raise BadInput("--block, --blocks and --jobs: expected --adaptive as well")
    check_destination(options.out)
    if options.adaptive not in (None, Path()):
        configurations = run_blocks(options, plan)
    else:
        with Display().working("reading the runs"):
            configurations = read_configurations(options.folders)
    differing = differences(configurations)
    check_factor(differing, options.factor, options.claim)
    if options.claim:
        check_claim(configurations)
    with Display().working("drawing bootstrap samples"):
        comparison = comparisons.compare(configurations, differing)
    print_comparison(
        Console(highlight=False, emoji=False, markup=False), comparison, options.metric
    )
    if options.adaptive is not None:
        found = sequential_test(METRICS[options.metric], configurations, plan)
        print(found.text([each.name for each in configurations]))
    with Display().working("drawing the page"):
        write_comparison(options.out, comparison, options.metric)
    print(f"page: {options.out}")
    return 0


def run_blocks(options: argparse.Namespace, plan: SeedPlan) -> list[Configuration]:
    """Train a sweep's configurations, block by block of seeds, until the test needs no more.

    Runs of further seeds, which an earlier command may have left unfinished, are not read.

    Raises:
        BadInput: the sweep has no such configuration, or not enough seeds.
        SerlError: a training failed.
    """
    folders = [folder.resolve() for folder in options.folders]
    sweep = read_sweep(options.adaptive)
    seeds = sorted(sweep.seeds)[: plan.block * plan.blocks]
    if len(seeds) < plan.block * plan.blocks:
        raise BadInput(
            f"{options.adaptive}: {len(seeds)} seeds, expected {plan.block * plan.blocks}: "
            f"{plan.blocks} blocks of {plan.block}"
        )
    runs = [run for run in sweep_runs(sweep, folders[0].parent) if run.path.parent in folders]
    if missing := [folder for folder in folders if folder not in {r.path.parent for r in runs}]:
        raise BadInput(f"{missing[0]}: is no configuration of {options.adaptive}")
    for end in range(plan.block, len(seeds) + 1, plan.block):
        block = [run for run in runs if run.seed in seeds[:end]]
        if train_all(block, options.jobs):
            raise SerlError("the comparison needs all of its runs")
        configurations = read_configurations(folders, {run.path for run in block})
        found = sequential_test(METRICS[options.metric], configurations, plan)
        print(found.text([each.name for each in configurations]), flush=True)
        if found.is_over:
            break
    return configurations


def read_configurations(
    folders: list[Path], runs: Container[Path] | None = None
) -> list[Configuration]:
    """Read the runs of each folder, or some of them; number configurations of equal names.

    Raises:
        BadInput: there are too few or too many folders, or one cannot be read.
    """
    if not 2 <= len(folders) <= len(COLOURS):
        raise BadInput(f"expected 2 to {len(COLOURS)} folders to compare, got {len(folders)}")
    found = [read_configuration(folder, runs) for folder in folders]
    counts, seen = Counter(each.name for each in found), Counter[str]()
    for number, each in enumerate(found):
        if counts[each.name] > 1:
            seen[each.name] += 1
            found[number] = replace(each, name=f"{each.name} ({seen[each.name]})")
    return found


def print_comparison(console: Console, comparison: Comparison, name: MetricName) -> None:
    """Print the tables of a comparison, and the verdict by a metric."""
    whole = not console.is_terminal  # in a pipe, a sentence is one line
    for each in comparison.configurations:
        runs = "; ".join(
            f"{task}: seeds {', '.join(str(run.seed) for run in runs)}"
            for task, runs in each.tasks.items()
        )
        console.print(f"{each.name}: {runs}", soft_wrap=whole)
    settings = Table(box=None, pad_edge=False)
    for title in ("setting", *(each.name for each in comparison.configurations)):
        settings.add_column(title, overflow="fold")
    for row in setting_rows(comparison):
        settings.add_row(*row)
    console.print(settings if comparison.differing else "no setting differs")
    results = Table(box=None, pad_edge=False)
    for title in heads(comparison):
        results.add_column(title, overflow="fold")
    for row in result_rows(comparison):
        results.add_row(*row)
    console.print(results)
    for line in remarks(comparison):
        console.print(line, soft_wrap=whole)
    for number in range(1, len(comparison.configurations)):
        console.print(comparison.verdict(name, number), soft_wrap=whole)
