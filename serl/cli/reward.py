"""`serl reward audit`: count a model's mistakes on what was recorded, and show the worst."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from serl.runs.config import parse_overrides
from serl.system.contact_sheet import PER_ROW, contact_sheet
from serl.errors import BadInput
from serl.system.files import check_destination
from serl.log.annotations import Origin
from serl.system.settings_file import checked, merge
from serl.reward import RewardConfig
from serl.datasets.reward_audit import audit, endings
from serl.runs.reward_data import episode_folders, read_images, read_sight, task_of
from serl.datasets.reward_truth import UNKNOWN, Told, told_episodes
from serl.datasets.tuned_reward import tuned_reward
from serl.types import Image

_TRUTHS = {
    "labels": "what people or scripts said of steps",
    "simulation": "what the simulation knew, beside the reward that judged",
    "outcome": "how the task itself judged",
}
_LISTED = 5
_SHOWN = 4 * PER_ROW


def add_audit_options(parser: argparse.ArgumentParser) -> None:
    """Of the command."""
    parser.add_argument("model", type=Path, help="file that `serl reward train` wrote")
    parser.add_argument(
        "recordings",
        type=Path,
        nargs="+",
        help="runs, with labels or judged by their task; collections; or RUN/episodes/ACTOR",
    )
    parser.add_argument("--sheet", type=Path, help="write the worst mistakes to this .png file")


def execute_audit(options: argparse.Namespace) -> int:
    """Print how a model does, as the reward of a training would use it.

    Raises:
        BadInput: nothing is known of any episode, or the model is of another task or cameras.
    """
    from serl.agents.classifier import Classifier, check_origin, unproven
    from serl.system.video import write_png

    if options.sheet:
        check_destination(options.sheet)
    model = Classifier.load(options.model)
    card, folders = model.card, episode_folders(options.recordings)
    task, drawn = task_of(folders), {read_sight(folder).renderer for folder in folders}
    config = reward_settings(options.model, folders, task, parse_overrides(options.overrides))
    check_origin(options.model, card, task, drawn, config.transfer)
    found = list(told_episodes(folders, card.views, model.probabilities, config, len(card.classes)))
    known = [episode for episode in found if episode.by]
    if not known:
        raise BadInput(_nothing_known(folders, len(found)))
    mistakes = _Mistakes(known, config, config.threshold or card.threshold)
    lines = [*_truth_lines(found), *mistakes.lines(options.model)]
    if why := unproven(card, config):
        lines.append(f"{options.model}: {why}")
    if options.sheet:
        write_png(options.sheet, mistakes.sheet(list(card.views)))
        lines.append(f"the worst mistakes of single images: {options.sheet}")
    for line in lines:
        print(line)  # noqa: T201
    return 0


class _Mistakes:
    """What a model does wrong in episodes of which something is known."""

    def __init__(self, episodes: Sequence[Told], config: RewardConfig, threshold: float) -> None:
        self._episodes, self._config, self._threshold = episodes, config, threshold
        truths = np.concatenate([episode.truths for episode in episodes])
        told = np.concatenate([episode.probabilities for episode in episodes])
        known = truths != UNKNOWN
        origins = [origin for episode in episodes for origin in episode.origins]
        self._origins = [origins[row] for row in np.flatnonzero(known)]
        self._sureness = told[known][:, -1].tolist()
        self._images = audit(truths[known], told[known], threshold)
        self._endings = endings(episodes, config, threshold)

    def lines(self, model: Path) -> list[str]:
        """For people: the counts, and where the worst are, as `serl reward label` takes them."""
        config, (k, n), images = self._config, self._config.hold, self._images
        lines = [
            f"{model}: of single images, believed from {self._threshold:.3f} on",
            *_indented([*_place_lines(config, self._episodes), *images.lines()]),
            f"as a reward, that waits for {k} of the last {n} images:",
            *_indented(self._endings.lines()),
        ]
        lines += [f"false success: {_where(place)}" for place in self._endings.wrong[:_LISTED]]
        for rows, what in (
            (images.false_positives, "taken for success"),
            (images.false_negatives, "missed"),
        ):
            lines += [
                f"{what}, {_sure(self._sureness[row])}: {_where(self._origins[row])}"
                for row in rows[:_LISTED]
            ]
        return lines

    def sheet(self, views: Sequence[str]) -> Image:
        """The worst mistakes of single images, as one picture."""
        images = self._images
        halves = [
            self._half(images.false_positives, views, "taken for success, wrongly"),
            self._half(images.false_negatives, views, "successes that it missed"),
        ]
        return np.concatenate(halves)

    def _half(self, rows: Sequence[int], views: Sequence[str], title: str) -> Image:
        shown = [(self._sureness[row], self._origins[row]) for row in rows[:_SHOWN]]
        captions = [
            f"{_sure(sureness)}  {place.episode}:{place.step}" for sureness, (_, place) in shown
        ]
        text = title if len(rows) <= _SHOWN else f"{title}: the worst of {len(rows)}"
        return contact_sheet(read_images([origin for _, origin in shown], views), captions, text)


def reward_settings(
    model: Path, folders: Sequence[Path], task: str, asked: Mapping[str, Any]
) -> RewardConfig:
    """As a training of the task would use a model: of a run as that run says, else as tuned.

    Args:
        model: its file.
        folders: of episodes; the first one counts.
        task: that they are of.
        asked: overrides, as of a training.

    Raises:
        BadInput: an override that is none of a reward.
    """
    if unknown := asked.keys() - {"reward"}:
        raise BadInput(
            f"{min(unknown)}: unknown setting; known ones: reward.hold, reward.threshold, "
            "reward.tool_low_m, reward.tool_high_m, reward.transfer"
        )
    base = tuned_reward(folders, task).model_dump()
    given = {**merge(base, asked.get("reward", {})), "kind": "classifier", "model": model}
    return checked(RewardConfig, given)


def _nothing_known(folders: Sequence[Path], episodes: int) -> str:
    where = ", ".join(map(str, folders[:3]))
    if not episodes:
        return f"{where}: no episode is recorded here"
    return (
        f"{where}: nothing says what was a success in {episodes} episodes: no step is labelled, "
        "and neither a simulation nor the task judged them: mark steps by serl reward label "
        f"{folders[0]} --episode N --steps FIRST:LAST --label 1 (or 0)"
    )


def _truth_lines(episodes: Sequence[Told]) -> list[str]:
    counts = Counter(episode.by for episode in episodes)
    lines = [f"truth: {text}, {counts[by]} episodes" for by, text in _TRUTHS.items() if counts[by]]
    if counts[""]:
        lines.append(f"left out: {counts['']} episodes of which nobody said what was a success")
    return lines


def _place_lines(config: RewardConfig, episodes: Sequence[Told]) -> list[str]:
    lines = [
        f"where the tool is {word} x, y, z of {corner} m"
        for word, corner in (("above", config.tool_low_m), ("below", config.tool_high_m))
        if corner is not None
    ]
    lost = sum(not episode.placed for episode in episodes)
    if lines and lost:
        lines.append(f"but anywhere in {lost} of {len(episodes)} episodes: they do not say where")
    return lines


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _sure(sureness: float) -> str:
    """Of a success; no image is asked about where the tool cannot be at one."""
    return f"{sureness:.3f}" if sureness else "by its place"


def _where(origin: Origin) -> str:
    return f"{origin.folder} --episode {origin.place.episode} --steps {origin.place.step}"
