"""Deployment of a trained policy without a learner: its weights, and the results of its episodes.

A deployment is a run folder of its own, `RUN/deployments/<stamp>`, with episodes logged like those
of a training, and a file with one line per episode.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_type_hints

from serl.agent import Agent
from serl.arm_profile import is_real
from serl.errors import BadInput, CorruptData
from serl.log.annotations import read_labels
from serl.runs.assembly import make_acting_agent
from serl.runs.checkpoint import Checkpoint, load, pick
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.specs import Spec
from serl.system.files import open_regular, read_bounded
from serl.system.json_fields import check_fields, dump_object, parse_object, short
from serl.task import SimulatedTask
from serl.training.evaluation import Evaluation, Trial, describe_early_end
from serl.transport import Snapshot

FOLDER = "deployments"
_FILE = "trials.jsonl"
_MAX_BYTES = 16 << 20


def trials_command(run: RunFolder) -> str:
    """Return the command that runs trials of a run's policy: in simulation, or on its arm."""
    path, robot = shlex.quote(str(run.path)), run.config.robot
    if robot is None or not is_real(robot):
        return f"serl eval {path}"
    return f"serl run {path} --robot {shlex.quote(robot)} --namespace {run.config.namespace}"


class TrialResult(NamedTuple):
    """The result of one episode of a trained policy.

    Attributes:
        episode: number of the episode, from 0.
        success: the task was solved; in simulation, according to the ground truth as well.
        assisted: a person drove some of the steps.
        steps: length of the episode.
        duration_s: length in task time.
        reason: reason for the end of the episode.
        void: why the episode does not count as a trial; empty if it counts.
        log_count: number of episodes in the log up to this one, resets among them; 0 if unknown.
        checkpoint: steps of the checkpoint that acted.
        purpose: "selection", a trial to choose a checkpoint, or "final".
    """

    episode: int
    success: bool
    assisted: bool
    steps: int
    duration_s: float
    reason: str
    void: str = ""
    log_count: int = 0
    checkpoint: int = 0
    purpose: str = "final"

    def __str__(self) -> str:
        if self.void:
            return f"void, {self.void} ({self.reason})"
        outcome = "success" if self.success else f"failed ({self.reason})"
        helped = ", with a person's help" if self.assisted else ""
        return f"{outcome} after {self.duration_s:.1f} s{helped}"


_FIELDS = get_type_hints(TrialResult)


class FixedWeights:
    """Constant weights of a checkpoint, as a `serl.transport.WeightSource`.

    Args:
        checkpoint: holds the actor's part of an agent.

    Raises:
        CorruptData: the checkpoint holds no weights of an actor.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        if "actor" not in checkpoint.arrays:
            raise CorruptData(f"{checkpoint.path}: holds no weights of an actor")
        self._snapshot = Snapshot(max(1, checkpoint.step), {}, checkpoint.arrays["actor"])

    def latest(self, newer_than: int) -> Snapshot | None:
        """Return the weights, or None if their version is not above `newer_than`."""
        return self._snapshot if self._snapshot.version > newer_than else None


def load_fitting(path: Path, config: TrainConfig) -> Checkpoint:
    """Load a checkpoint whose spec equals that of the configured task.

    Raises:
        BadInput: the checkpoint was made for another spec: the task's code or settings have changed
            since.
        CorruptData: the checkpoint is damaged.
    """
    checkpoint, expected = load(path), make_spec(make_task(config)).digest
    found = checkpoint.info.get("spec")
    if found != expected:
        raise BadInput(
            f"{path}: the policy was made for the spec {short(found)}, the task's is {expected!r}"
        )
    return checkpoint


class TrainedAgent(NamedTuple):
    """The agent of a checkpoint, which acts in float32 on one CPU thread.

    Attributes:
        agent: agent with the weights of the checkpoint.
        step: online steps that the agent was trained on.
        config: settings of the run.
    """

    agent: Agent
    task: SimulatedTask
    spec: Spec
    step: int
    config: TrainConfig


def load_agent(folder: Path, checkpoint: int | None = None) -> TrainedAgent:
    """Load the trained agent of a run.

    Args:
        folder: folder of the run.
        checkpoint: steps of the checkpoint; None for the best, else the newest.

    Raises:
        BadInput: no such run or checkpoint, or the task has changed since.
        CorruptData: the checkpoint is damaged.
    """
    run = one_part(RunFolder.open(folder))
    config = run.config
    loaded = load_fitting(pick(run.checkpoints, checkpoint), config)
    task = make_task(config)
    spec = make_spec(task)
    agent = make_acting_agent(_in_float32(config), spec, 0)
    agent.load_actor_weights(loaded.arrays["actor"])
    return TrainedAgent(agent, task, spec, loaded.step, config)


def one_part(run: RunFolder) -> RunFolder:
    """Return the run; raise `BadInput` for one with stages, each of which is a run."""
    if stages := run.config.stages:
        known = ", ".join(f"{run.path}/stages/{name}" for name in stages)
        raise BadInput(f"{run.path}: has stages, each a run: expected one of {known}")
    return run


def _in_float32(config: TrainConfig) -> TrainConfig:
    """Return the settings with products in float32, so that machines agree."""
    if not hasattr(config.agent, "matmul"):
        return config
    return config.model_copy(
        update={"agent": config.agent.model_copy(update={"matmul": "float32"})}
    )


def append_trial_result(folder: Path, result: TrialResult) -> None:
    """Append the result of an episode to the file of a deployment."""
    with open_regular(folder / _FILE, mode="ab") as file:
        file.write(dump_object(result._asdict()) + b"\n")


def read_trial_results(folder: Path) -> list[TrialResult]:
    """Return the results so far, corrected by people's labels; an incomplete last line is ignored.

    A label of the last step of an episode, or of its final observation, decides on its success; see
    `serl reward label`.

    Raises:
        CorruptData: a line is damaged.
    """
    path = folder / _FILE
    try:
        text = read_bounded(path, _MAX_BYTES)
    except FileNotFoundError:
        return []
    labels: dict[int, dict[int, int]] = {}
    for actor in sorted(folder.glob("episodes/*/")):
        for place, label in read_labels(actor).items():
            labels.setdefault(place.episode, {})[place.step] = label
    found = []
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        fields = TrialResult._field_defaults | parse_object(line, str(path))
        check_fields(fields, _FIELDS, str(path))
        found.append(_correct(TrialResult(**fields), labels))
    return found


def _correct(result: TrialResult, labels: Mapping[int, Mapping[int, int]]) -> TrialResult:
    """Return a result with the success of a person's label of its end, if there is one."""
    own = labels.get(result.log_count - 1, {})
    label = own.get(result.steps, own.get(result.steps - 1))
    return result if label is None else result._replace(success=label > 0, void="")


def unassisted(
    results: Sequence[TrialResult],
    purpose: str = "final",
    checkpoint: int | None = None,
    planned: int | None = None,
) -> Evaluation | None:
    """Return the unassisted episodes as trials; None if none counts and all planned were run.

    Args:
        results: results of all episodes.
        purpose: purpose of the trials.
        checkpoint: steps of a checkpoint, to leave out the trials of others.
        planned: number of final trials that were to count; None if their number had no limit.
    """
    trials = [
        Trial(each.episode, each.success, each.steps, each.duration_s, each.reason, each.void)
        for each in results
        if not each.assisted and each.purpose == purpose and checkpoint in (None, each.checkpoint)
    ]
    counted = tuple(trial for trial in trials if not trial.void)
    void = tuple(trial for trial in trials if trial.void)
    ended, run = "", sum(each.purpose == "final" and not each.void for each in results)
    if planned is not None and run < planned:
        causes = [each.void for each in results if each.void]
        helped = sum(_is_repeated(each) and not each.void for each in results)
        ended = describe_early_end(causes, len(counted), planned, helped)
    return Evaluation(counted, void, ended) if counted or ended else None


def _is_repeated(result: TrialResult) -> bool:
    return bool(result.void) or (result.assisted and result.purpose == "selection")


def result_lines(results: Sequence[TrialResult], episodes: int | None, most: int) -> list[str]:
    """Return a line for each result, numbered from 1; a repeated episode's number is used again.

    Void trials are repeated; in the choice of a checkpoint those with a person's help are, too.

    Args:
        results: results of all episodes so far.
        episodes: number of episodes that count as final trials; None for no end.
        most: largest number of trials to choose a checkpoint.
    """
    of, counts, lines = f" of {episodes}" if episodes else "", Counter[str](), []
    for each in results:
        number = counts[each.purpose] + 1
        place = f"episode {number}{of}"
        if each.purpose == "selection":
            place = f"selection trial {number} of at most {most}, checkpoint {each.checkpoint:,}"
        lines.append(f"{place}: {each}")
        counts[each.purpose] += not _is_repeated(each)
    return lines


def summary(results: Sequence[TrialResult], planned: int | None = None) -> str:
    """Return lines with the unassisted success rate and interval, and with assisted successes.

    Args:
        results: results of all episodes.
        planned: number of final trials that were to count; None if their number had no limit.
    """
    evaluation = unassisted(results, planned=planned)
    results = [each for each in results if each.purpose == "final"]
    helped = [each for each in results if each.assisted and not each.void]
    lines = []
    if evaluation is not None:
        lines.append(evaluation.summary())
    elif void := [each for each in results if each.void]:
        lines.append(f"no trial counts, {len(void)} void ({', '.join({v.void for v in void})})")
    if helped:
        won = sum(each.success for each in helped)
        lines.append(f"{won} of {len(helped)} episodes with a person's help succeeded")
    return "\n".join(lines) or "no episode came to its end"
