"""`serl compare`: configurations over tasks and seeds, as text and as a page."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.table import Table

from serl.errors import BadInput
from serl.report.comparison import Comparison, MetricName
from serl.report.comparison import compare as compared
from serl.report.comparison_page import (
    COLOURS,
    heads,
    remarks,
    result_rows,
    setting_rows,
    write_comparison,
)
from serl.report.outcomes import (
    Configuration,
    check_claim,
    check_factor,
    differences,
    read_configuration,
)
from serl.system.files import check_destination


def compare_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl compare`."""
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="the finished runs of one configuration, over tasks and seeds; the first is the base",
    )
    parser.add_argument(
        "--metric",
        choices=get_args(MetricName),
        default="success",
        help="the metric at the top; the others are in the table",
    )
    parser.add_argument(
        "--factor",
        action="append",
        default=[],
        metavar="NAME",
        help="a setting, or a group of settings, that may differ; by default any one may",
    )
    parser.add_argument(
        "--claim",
        action="store_true",
        help="require 5 seeds from 100 on, of each task and configuration",
    )
    parser.add_argument("--out", type=Path, default=Path("compare.html"), help="page to write")


def compare(options: argparse.Namespace) -> int:
    """Compare configurations; print a summary and write a page.

    Raises:
        BadInput: the runs cannot be compared.
    """
    configurations = read_configurations(options.folders)
    differing = differences(configurations)
    check_factor(differing, options.factor, options.claim)
    if options.claim:
        check_claim(configurations)
    check_destination(options.out)
    comparison = compared(configurations, differing)
    print_comparison(comparison, options.metric)
    write_comparison(options.out, comparison, options.metric)
    print(f"page: {options.out}")
    return 0


def read_configurations(folders: list[Path]) -> list[Configuration]:
    """Read the runs of each folder, and give equal names a number.

    Raises:
        BadInput: there are too few or too many folders, or one cannot be read.
    """
    if not 2 <= len(folders) <= len(COLOURS):
        raise BadInput(f"expected 2 to {len(COLOURS)} folders to compare, got {len(folders)}")
    found = [read_configuration(folder) for folder in folders]
    counts, seen = Counter(each.name for each in found), Counter[str]()
    for number, each in enumerate(found):
        if counts[each.name] > 1:
            seen[each.name] += 1
            found[number] = replace(each, name=f"{each.name} ({seen[each.name]})")
    return found


def print_comparison(comparison: Comparison, name: MetricName) -> None:
    """Print the tables of a comparison, and the verdict by a metric."""
    console = Console(highlight=False, markup=False)
    for each in comparison.configurations:
        runs = "; ".join(
            f"{task}: seeds {', '.join(str(run.seed) for run in runs)}"
            for task, runs in each.tasks.items()
        )
        console.print(f"{each.name}: {runs}", soft_wrap=True)
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
        console.print(line, soft_wrap=True)
    for number in range(1, len(comparison.configurations)):
        console.print(comparison.verdict(name, number), soft_wrap=True)
