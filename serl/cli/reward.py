"""`serl reward`: collect, label, train and audit models of success."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from serl import plugins
from serl.cli import record as record_command
from serl.cli.arguments import (
    add_model_out,
    add_task,
    check_model_out,
    integer,
    quoted,
    stamped_folder,
)
from serl.datasets.reward_audit import (
    UNKNOWN,
    LabelledEpisode,
    audit,
    endings,
    labelled_episodes,
    tuned_reward,
)
from serl.errors import BadInput, counted
from serl.log.annotations import LABELS_FILE, Origin, StepKey, append_labels, read_labels
from serl.log.episode_reader import episode_name, episode_paths, read_episode, read_spec
from serl.report.display import Display
from serl.reward import RewardConfig
from serl.runs.config import parse_overrides, resolve
from serl.runs.reward_data import (
    episode_folders,
    read_images,
    read_samples,
    read_sight,
    task_of,
)
from serl.runs.task_setup import make_task
from serl.system.files import FileLock, check_destination
from serl.system.settings_file import checked, merge
from serl.types import Image

_TRUTHS = {
    "labels": "labels of steps by people or scripts",
    "simulation": "the simulation's ground truth, recorded with the reward",
    "outcome": "outcomes that the task reported",
}
_LISTED = 5
_SHOWN = 32  # four rows of a contact sheet


def audit_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl reward audit`."""
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="file that `serl reward train` wrote"
    )
    parser.add_argument(
        "recordings",
        type=Path,
        nargs="+",
        metavar="RECORDING",
        help="labelled or simulated runs, collections, or RUN/episodes/ACTOR",
    )
    parser.add_argument(
        "--sheet", type=Path, metavar="FILE", help="write the images of the worst errors, .png"
    )


def audit_model(options: argparse.Namespace) -> int:
    """Print the errors of a model, used as in the reward of a training.

    Raises:
        BadInput: no episode has ground truth, or the model is for another task or other cameras.
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
    found, total = list[LabelledEpisode](), sum(len(episode_paths(each)) for each in folders)
    with Display().counting("episodes", total) as advance:
        for episode in labelled_episodes(
            folders, card.views, model.probabilities, config, len(card.classes)
        ):
            found.append(episode)
            advance()
    known = [episode for episode in found if episode.by]
    if not known:
        raise BadInput(_missing_labels(folders, len(found)))
    mistakes = _Mistakes(known, config, config.threshold or card.threshold)
    lines = [*_truth_lines(found), *mistakes.lines(options.model)]
    if why := unproven(card, config):
        lines.append(f"{options.model}: {why}")
    if options.sheet:
        write_png(options.sheet, mistakes.sheet(list(card.views)))
        lines.append(f"the worst mistakes of single images: {options.sheet}")
    for line in lines:
        print(line)
    return 0


class _Mistakes:
    """Errors of a model in episodes with ground truth."""

    def __init__(
        self, episodes: Sequence[LabelledEpisode], config: RewardConfig, threshold: float
    ) -> None:
        self._episodes, self._config, self._threshold = episodes, config, threshold
        truths = np.concatenate([episode.truths for episode in episodes])
        predictions = np.concatenate([episode.probabilities for episode in episodes])
        known = truths != UNKNOWN
        origins = [origin for episode in episodes for origin in episode.origins]
        self._origins = [origins[row] for row in np.flatnonzero(known)]
        self._probabilities = predictions[known][:, -1].tolist()
        self._images = audit(truths[known], predictions[known], threshold)
        self._endings = endings(episodes, config, threshold)

    def lines(self, model: Path) -> list[str]:
        """Format the counts, and the worst errors in the syntax of `serl reward label`."""
        config, (k, n), images = self._config, self._config.hold, self._images
        lines = [
            f"{model}: single images, success from a probability of {self._threshold:.3f} on",
            *_indented([*_place_lines(config, self._episodes), *images.lines()]),
            f"as a reward, which requires {k} of the last {n} images:",
            *_indented(self._endings.lines()),
        ]
        lines += [f"false success: {_where(place)}" for place in self._endings.wrong[:_LISTED]]
        for rows, error_name in (
            (images.false_positives, "false positive"),
            (images.false_negatives, "false negative"),
        ):
            lines += [
                f"{error_name}, {_score(self._probabilities[row])}: {_where(self._origins[row])}"
                for row in rows[:_LISTED]
            ]
        return lines

    def sheet(self, views: Sequence[str]) -> Image:
        """Return the worst errors on single images as one picture."""
        images = self._images
        halves = [
            self._half(images.false_positives, views, "false positives"),
            self._half(images.false_negatives, views, "false negatives"),
        ]
        return np.concatenate(halves)

    def _half(self, rows: Sequence[int], views: Sequence[str], title: str) -> Image:
        from serl.system.video import contact_sheet

        shown = [(self._probabilities[row], self._origins[row]) for row in rows[:_SHOWN]]
        captions = [f"{_score(p)}  {place.episode}:{place.step}" for p, (_, place) in shown]
        text = title if len(rows) <= _SHOWN else f"{title}: the worst of {len(rows)}"
        return contact_sheet(read_images([origin for _, origin in shown], views), captions, text)


def reward_settings(
    model: Path, folders: Sequence[Path], task: str, overrides: Mapping[str, Any]
) -> RewardConfig:
    """Return the reward settings of a training of the task: those of a run, else the task's own.

    Args:
        model: file of the model.
        folders: folders of episodes; the first one counts.
        task: name of their task.
        overrides: overrides in the form of a training's.

    Raises:
        BadInput: an override is not a setting of the reward.
    """
    if unknown := overrides.keys() - {"reward"}:
        raise BadInput(
            f"{min(unknown)}: unknown setting; known ones: reward.hold, reward.threshold, "
            "reward.tool_low_m, reward.tool_high_m, reward.transfer"
        )
    base = tuned_reward(folders, task).model_dump()
    given = {**merge(base, overrides.get("reward", {})), "kind": "classifier", "model": model}
    return checked(RewardConfig, given)


def _missing_labels(folders: Sequence[Path], episodes: int) -> str:
    where = ", ".join(map(str, folders[:3]))
    if not episodes:
        return f"{where}: no episode is recorded here"
    return (
        f"{where}: no ground truth of success in {episodes} episodes: no label of a step, and no "
        "outcome of a simulation or a task: label steps with serl reward label "
        f"{quoted(folders[0])} --episode N --steps FIRST:LAST --label 1 (or 0)"
    )


def _truth_lines(episodes: Sequence[LabelledEpisode]) -> list[str]:
    counts = Counter(episode.by for episode in episodes)
    lines = [f"truth: {text}, {counts[by]} episodes" for by, text in _TRUTHS.items() if counts[by]]
    if counts[""]:
        lines.append(f"left out: {counts['']} episodes without ground truth of success")
    return lines


def _place_lines(config: RewardConfig, episodes: Sequence[LabelledEpisode]) -> list[str]:
    lines = [
        f"where the tool is {word} x, y, z of {corner} m"
        for word, corner in (("above", config.tool_low_m), ("below", config.tool_high_m))
        if corner is not None
    ]
    lost = sum(not episode.placed for episode in episodes)
    if lines and lost:
        episodes_lost = f"{lost} of {len(episodes)} episodes"
        lines.append(f"wherever the tool is in {episodes_lost}, whose labels name no steps")
    return lines


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _score(probability: float) -> str:
    """Format a success probability; 0 means that the tool is outside the bounds of a success."""
    return f"{probability:.3f}" if probability else "out of bounds"


def _where(origin: Origin) -> str:
    epoch, episode, step = origin.place
    return f"{quoted(origin.folder)} --epoch {epoch} --episode {episode} --steps {step}"


_BY_WORDS = (
    "the success button of your device labels the current step as positive, its failure button as "
    "negative; --console has keys and buttons for both"
)


def collect_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl reward collect`."""
    add_task(parser)
    for name, default, what in (("positives", 200, "success"), ("negatives", 1000, "no success")):
        parser.add_argument(
            f"--{name}", type=integer(1), default=default, metavar="N", help=f"steps with {what}"
        )
    parser.add_argument(
        "--seed", type=integer(0, 2**32 - 1), default=0, help="seed of the initial scenes"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder of the collection")
    record_command.add_person(parser)


def collect(options: argparse.Namespace) -> int:
    """Collect labelled images in a simulation or from a person."""
    from serl.datasets.reward_collection import LabelCounts, collect

    record_command.check_person(options)
    if options.console or options.device or options.robot:
        return _collect_person(options)
    named = {"task": options.task, "observe": "pixels"}
    config = resolve(named, parse_overrides(options.overrides))
    task = make_task(config)
    folder = options.out or stamped_folder(task.name, "reward")
    if episode_paths(folder) or (folder / LABELS_FILE).exists():  # those of removed episodes
        raise BadInput(f"{folder}: already holds episodes or labels; give another --out")
    target = LabelCounts(options.positives, options.negatives)
    with (
        plugins.make_simulation(task) as robot,
        Display().counting("labelled images", sum(target)) as advance,
    ):
        try:
            counts = collect(
                robot,
                task,
                folder,
                target,
                options.seed,
                lambda counts: advance(sum(counts)),
                config.log,
            )
        except KeyboardInterrupt:
            print(f"{counted(len(episode_paths(folder)), 'episode')} in {folder}", file=sys.stderr)
            raise
    episodes = len(episode_paths(folder))
    print(
        f"{counts.positives} positives and {counts.negatives} negatives, "
        f"of {counted(episodes, 'episode')}"
    )
    print(f"in {folder}; next: serl reward train {quoted(folder)} --out {task.name}.safetensors")
    return 0


def _collect_person(options: argparse.Namespace) -> int:
    from serl.datasets.recording_session import RecordingSession, write_session
    from serl.datasets.reward_collection import LabelCounts, Marks, collect_person

    target = LabelCounts(options.positives, options.negatives)
    defaults = {
        "observe": "pixels",
        "task_config": {"time_limit_s": record_command.PERSONS_TIME_S},
    }
    device = record_command.open_device(options)
    run = record_command.persons_folder(options, defaults, "reward")
    task = make_task(run.config)
    if not options.console:
        print(_BY_WORDS, flush=True)

    def on_episode(counts: LabelCounts) -> None:
        parts = zip(counts, target, ("positives", "negatives"), strict=True)
        line = ", ".join(f"{count} of {wanted} {name}" for count, wanted, name in parts)
        print(line, flush=True)

    with FileLock(run.path / "recorder.lock", f"the recording {run.path}"):
        write_session(run.path, RecordingSession(purpose="reward", wanted=target._asdict()))
        marks = Marks(run)
        commands = {"positive": lambda: marks.mark(1), "negative": lambda: marks.mark(0)}
        with (
            record_command.open_station(options, run, task, device, commands) as station,
            suppress(KeyboardInterrupt),
        ):
            collect_person(station, task, run, marks, target, options.seed, on_episode)
    counts = marks.counts
    print(f"{counts.positives} positives and {counts.negatives} negatives in {run.path}")
    if counts.positives < target.positives or counts.negatives < target.negatives:
        print(f"to continue: the same command with --out {quoted(run.path)}")
        raise KeyboardInterrupt
    print(f"next: serl reward train {quoted(run.path)} --out {task.name}.safetensors")
    return 0


def label_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl reward label`."""
    parser.add_argument(
        "folder", type=Path, metavar="RECORDING", help="a collection, a run, or RUN/episodes/ACTOR"
    )
    parser.add_argument(
        "--episode",
        type=integer(0),
        required=True,
        metavar="N",
        help="number of the episode, from its file name",
    )
    parser.add_argument(
        "--epoch", type=integer(0), help="epoch of the actor in the file name, else the newest"
    )
    parser.add_argument(
        "--steps", required=True, metavar="FIRST:LAST", help="steps to label, or a single step"
    )
    parser.add_argument(
        "--label", type=integer(0), required=True, help="0: no success, 1: success, or a stage"
    )


def label(options: argparse.Namespace) -> int:
    """Label steps of an episode."""
    first, colon, last = options.steps.partition(":")
    try:
        steps = range(int(first), int(last if colon else first) + 1)
    except ValueError:
        raise BadInput(f"--steps {options.steps!r}: expected a number, or FIRST:LAST") from None
    folder, *others = episode_folders([options.folder])
    if others:
        actors = ", ".join(map(str, (folder, *others)))
        raise BadInput(
            f"{options.folder}: several actors have episodes: give the folder of one: {actors}"
        )
    paths = {tuple(episode_name(path)): path for path in episode_paths(folder)}
    epochs = [epoch for epoch, episode in paths if episode == options.episode]
    epoch = max(epochs, default=-1) if options.epoch is None else options.epoch
    if (epoch, options.episode) not in paths:
        known = ", ".join(f"{episode} of {epoch}" for epoch, episode in sorted(paths)[:8]) or "none"
        raise BadInput(f"{folder}: no episode {options.episode}; there are: {known}")
    length = _length(paths[epoch, options.episode])
    if not steps or steps[0] < 0 or steps[-1] >= length:
        raise BadInput(f"--steps {options.steps}: expected steps from 0 to {length - 1}")
    places = [(StepKey(epoch, options.episode, step), options.label) for step in steps]
    count = append_labels(folder, places, "person")
    total = len(read_labels(folder))
    print(f"{count} steps are labelled {options.label}; {total} labels in {folder / LABELS_FILE}")
    return 0


def _length(path: Path) -> int:
    """Return the number of observations of an episode, the final one included."""
    if (spec := read_spec(path)) is None:
        return 0
    episode = read_episode(path, spec)
    return len(episode.steps) + (episode.end is not None)


def train_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl reward train`."""
    parser.add_argument(
        "folders",
        type=Path,
        nargs="+",
        metavar="RECORDING",
        help="labelled collections, runs, or RUN/episodes/ACTOR",
    )
    add_model_out(parser)


def train(options: argparse.Namespace) -> int:
    """Train a model of success, and print its errors on held-out episodes."""
    from serl.agents.classifier import Card
    from serl.agents.classifier_training import train_classifier
    from serl.agents.config import ClassifierConfig

    overrides = parse_overrides(options.overrides)
    folders = episode_folders(options.folders)
    task, drawn = task_of(folders), sorted({read_sight(folder).renderer for folder in folders})
    place = tuned_reward(folders, task).model_dump(include={"tool_low_m", "tool_high_m"})
    config = checked(ClassifierConfig, {**place, **overrides})
    check_model_out(options.out)
    with Display().working("reading the recordings"):
        samples, views = read_samples(folders)
    stages = [f"stage {number}" for number in range(1, int(samples.labels.max()))]
    card = Card(
        task=task,
        renderers=tuple(filter(None, drawn)),
        views=views,
        classes=("nothing", *stages, "success"),
    )
    with Display().counting("epochs", config.epochs) as on_epoch:
        trained = train_classifier(samples, card, config, on_epoch)
    trained.classifier.save(options.out)
    card = trained.classifier.card
    views_text = ", ".join(views)
    print(
        f"{options.out}: sees {views_text}; success from a probability of {card.threshold:.3f} on"
    )
    for word, corner in (("above", config.tool_low_m), ("below", config.tool_high_m)):
        if corner is not None:
            print(f"  where the tool is {word} x, y, z of {corner} m, as checked in a training")
    count = len(np.unique(trained.held_out.episodes))
    print(f"measured on {count} episodes that neither training nor calibration used:")
    for line in audit(trained.held_out.labels, trained.probabilities, card.threshold).lines():
        print(f"  {line}")
    return 0
