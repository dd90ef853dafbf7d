"""`report.html` of a run with stages: one page on all stages; each has a report of its own."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np

from serl.report import page
from serl.report.curves import Assistance, together
from serl.report.plots import Trace, plot
from serl.report.report import HERO_PX, STEPS, RunData, read_run, success_alone
from serl.runs.folder import STAGES, RunFolder
from serl.system.files import write_atomic
from serl.training.evaluation import wilson


def write_stages_report(run: RunFolder) -> Assistance:
    """Write the report of a run with stages into its folder, at any time of the run.

    Returns:
        The human help in all stages together.

    Raises:
        BadInput: a stage's folder is not a run.
    """
    stages = {name: read_run(part.path) for name, part in run.parts().items()}
    helped = together(stage.help for stage in stages.values())
    sections = [
        _headline(run, stages, helped),
        page.section("Stages", str(helped), page.panel(_table(stages, helped)) + _links(stages)),
        page.section("Learning", "Success of the last 20 unassisted episodes.", _curves(stages)),
    ]
    document = page.document(f"{run.config.task} · {run.name}", sections)
    write_atomic(run.report, document.encode())
    return helped


def _headline(run: RunFolder, stages: Mapping[str, RunData], helped: Assistance) -> str:
    finals = [stage.finals[-1] for stage in stages.values() if stage.finals]
    won, trials = (sum(int(row[name]) for row in finals) for name in ("successes", "trials"))
    if len(finals) == len(stages):
        text = f"{won} of {trials} unassisted trials of all stages succeeded."
        result = page.result(won / trials, wilson(won, trials), text)
    else:
        result = page.no_result("Not every stage has a final evaluation.")
    tiles = [
        ("episodes", page.whole(helped.episodes), "of all stages"),
        ("human steps", page.percent(helped.human_share), "of all steps"),
        ("takeovers", page.whole(helped.takeovers), "by a human, in training"),
        (
            "requests for a person",
            page.whole(helped.requests),
            f"{page.decimal(helped.requests_per_100)} per 100 episodes",
        ),
    ]
    return page.headline(run.config.task, run.name, result, "", tiles)


def _table(stages: Mapping[str, RunData], helped: Assistance) -> str:
    heads = ["stage", "final trials", "episodes", "steps", "human steps", "takeovers"]
    heads += ["requests for a person", "per 100 episodes"]
    rows = []
    for name, stage in stages.items():
        final = stage.finals[-1] if stage.finals else None
        trials = f"{final['successes']}/{final['trials']}" if final else "-"
        rows.append([name, trials, *_cells(stage.help)])
    return page.table(heads, [*rows, ["all", "", *_cells(helped)]])


def _cells(helped: Assistance) -> list[str]:
    return [
        page.whole(helped.episodes),
        page.whole(helped.steps),
        page.percent(helped.human_share, 1),
        page.whole(helped.takeovers),
        page.whole(helped.requests),
        page.decimal(helped.requests_per_100),
    ]


def _links(stages: Mapping[str, RunData]) -> str:
    links = (f'<a href="{STAGES}/{escape(name)}/report.html">{escape(name)}</a>' for name in stages)
    return f'<p class="note">Their own reports: {", ".join(links)}</p>'


def _curves(stages: Mapping[str, RunData]) -> str:
    cards = []
    for name, stage in stages.items():
        steps, rates = success_alone(stage)
        trace = Trace("", "policy", steps, rates)
        figure = plot(f"{name} success", [trace], STEPS, scale="percent", size_px=HERO_PX)
        rate = float(rates[-1]) if np.size(rates) else np.nan
        cards.append(page.card(name, figure, page.percent(rate)))
    return page.grid(cards, wide=True)
