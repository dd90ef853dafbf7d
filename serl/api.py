"""The public Python interface: trained policies, recorded data, training and environments.

The package `serl` has its main names too: `serl.load_policy`, `serl.open_run`, `serl.train`,
`serl.make_env` and `serl.Task`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from serl.agent import Agent
from serl.datasets.person import ACTOR as PERSON
from serl.errors import BadInput, SpecMismatch, did_you_mean
from serl.intervention import stuck_since_s
from serl.log.episode_reader import episode_paths, read_episode, read_spec
from serl.log.metrics import FILE
from serl.runs.config import TrainConfig
from serl.runs.demonstrations import DEMONSTRATORS
from serl.runs.deployment import load_agent, one_part
from serl.runs.folder import RunFolder
from serl.specs import Spec
from serl.system.files import home_path
from serl.system.json_fields import short
from serl.system.settings_file import leaves, merge, nest
from serl.task import SimulatedTask, Task
from serl.training.frames import FrameStack
from serl.types import (
    Action,
    ActionSource,
    Array,
    EndReason,
    Episode,
    Image,
    Observation,
    parse_reason,
)

if TYPE_CHECKING:
    from serl.datasets.tables import RecordingTables, Table
    from serl.gymnasium_env import TaskEnv

__all__ = [
    "Run",
    "Task",
    "TrainedPolicy",
    "Transitions",
    "load_policy",
    "make_env",
    "open_run",
    "train",
]

PolicyInput = Observation | np.ndarray[Any, Any] | Mapping[str, Any]
"""One observation or a batch; see `TrainedPolicy`."""


class TrainedPolicy:
    """The policy of a checkpoint, on one CPU thread; call it with one observation or a batch.

    It returns the mode of the policy, without exploration. It normalises observations as in
    training, and stacks the images of an episode where the policy sees several: call `reset` at
    the start of each episode.

    Attributes:
        task: the task of the run.
        spec: names, shapes and units of observations and actions.
        step: online steps that the policy was trained on.
    """

    def __init__(
        self, agent: Agent, task: SimulatedTask, spec: Spec, step: int, frames: int
    ) -> None:
        self.task, self.spec, self.step = task, spec, step
        self._agent = agent
        self._frames, self._stack = frames, FrameStack(frames)
        self._rows: int | None = None  # of the batches of this episode

    def reset(self, reading: Observation | None = None) -> None:
        """Begin an episode.

        Args:
            reading: first reading of the robot, if `observation` is used: poses relative to the
                start refer to it.
        """
        self._stack.begin()
        self._rows = None
        if reading is not None:
            self.task.begin(reading)

    def observation(self, reading: Observation) -> Observation:
        """Return the policy's observation of a robot's reading: in the frames of the task."""
        return self.task.observation(reading)

    def __call__(self, observation: PolicyInput) -> Action:
        """Return the action for one observation, (A,), or for each of a batch, (B, A).

        Where the policy sees several images of an episode, each row of a batch is an episode in
        progress, so that the size of a batch may change only after `reset`.

        Args:
            observation: an `Observation`; or a state vector (D,) or batch (B, D) of them; or, with
                cameras, a mapping with the state vector as "state" and the image of each camera,
                (H, W, 3) or (B, H, W, 3), by its name, as `make_env` gives it.

        Raises:
            SpecMismatch: a name, shape or type differs from the spec, a number is not finite, or
                the size of the batch has changed within an episode.
        """
        state, images = self._arrays(observation)
        single = state.ndim == 1
        if single:
            state, images = state[None], {name: image[None] for name, image in images.items()}
        if not len(state):
            return np.zeros((0, *self.spec.action.shape), np.float32)
        if self._frames > 1 and self._rows not in (None, len(state)):
            raise SpecMismatch(f"batch of {len(state)} after {self._rows}: call reset() first")
        self._rows = len(state)
        images = self._stack(Observation({}, images)).images
        if hasattr(self._agent, "modes"):
            actions: Array = self._agent.modes(state, images)
        else:  # an algorithm from outside
            actions = np.stack([self._act(state, images, row) for row in range(len(state))])
        return actions[0] if single else actions

    def _arrays(self, observation: PolicyInput) -> tuple[Array, Mapping[str, Image]]:
        """Return the state vectors and images, each checked."""
        expected = self.spec.observation
        if isinstance(observation, Observation):
            expected.validate_observation(observation)
            return expected.flatten(observation), observation.images
        if not isinstance(observation, Mapping):
            observation = {"state": observation}
        if observation.keys() != (names := {"state", *expected.images}):
            given = sorted(map(str, observation))
            raise SpecMismatch(f"observation: expected {sorted(names)}, got {given}")
        state = _array("state", observation["state"], np.float32)
        batch, size = state.shape[:-1], expected.state_size
        if len(batch) > 1 or state.shape[-1:] != (size,):
            raise SpecMismatch(
                f"state: expected the shape [{size}] or [B, {size}], got {list(state.shape)}"
            )
        if not np.isfinite(state).all():
            raise SpecMismatch(f"state: not finite: {state[~np.isfinite(state)][:3].tolist()}")
        images = {name: _array(f"image {name}", observation[name]) for name in expected.images}
        for name, image in images.items():
            shape = (*batch, *expected.images[name].shape)
            if image.shape != shape or image.dtype != np.uint8:
                found = f"{image.dtype}{list(image.shape)}"
                raise SpecMismatch(f"image {name}: expected uint8{list(shape)}, got {found}")
        return state, images

    def _act(self, state: Array, images: Mapping[str, Image], row: int) -> Action:
        named, start = {}, 0
        for name, array in self.spec.observation.state.items():
            end = start + int(np.prod(array.shape))
            named[name] = state[row, start:end].reshape(array.shape)
            start = end
        seen = {name: image[row] for name, image in images.items()}
        return self._agent.act(Observation(named, seen), explore=False)


def load_policy(run: str | Path, checkpoint: int | None = None) -> TrainedPolicy:
    """Load the trained policy of a run.

    It computes in float32, on the CPU, and sets torch of this process to one thread.

    Args:
        run: folder of the run.
        checkpoint: steps of the checkpoint; None for the best, else the newest.

    Raises:
        BadInput: no such run or checkpoint, or the task has changed since.
        CorruptData: the checkpoint is damaged.
    """
    loaded = load_agent(home_path(run), checkpoint)
    frames = loaded.config.agent.frames
    return TrainedPolicy(loaded.agent, loaded.task, loaded.spec, loaded.step, frames)


class Transitions(NamedTuple):
    """Transitions of all episodes that have a final observation, in the order of the steps.

    Steps that a learner does not train on are left out: the last one before a fault, those during
    which the arm was stuck, discarded episodes, and the steps of scripted resets.

    Attributes:
        state: state vectors before the actions.  # (N, D)
        action: executed actions.  # (N, A)
        reward: rewards.  # (N,)
        next_state: state vectors after the actions.  # (N, D)
        terminated: the task ended: no bootstrap.  # (N,) bool
        truncated: the episode was cut: bootstrap from `next_state`.  # (N,) bool
        episode: row of the episode in `Run.episodes`.  # (N,)
    """

    state: Array
    action: Array
    reward: np.ndarray[Any, Any]
    next_state: Array
    terminated: np.ndarray[Any, Any]
    truncated: np.ndarray[Any, Any]
    episode: np.ndarray[Any, Any]


class Run:
    """The recorded data of a run, or of a folder of episodes; each part is read when it is used.

    The first use of `steps` or `episodes` reads every recorded episode and stores its numbers in
    columns (`.columns` in the folder); later ones map that file. To read the new rows of a run
    in progress, open it again.

    Attributes:
        path: folder of the run.
        config: settings of the run; None for a folder of episodes.
    """

    def __init__(self, path: Path, config: TrainConfig | None, folders: Mapping[str, Path]) -> None:
        self.path, self.config = path, config
        self._folders = folders

    @cached_property
    def _recording(self) -> RecordingTables:
        try:
            from serl.datasets.tables import read_recording
        except ImportError as error:
            raise missing(error, "data") from error
        return read_recording(self._folders, self.path)

    @property
    def spec(self) -> Spec:
        """The names, shapes and units of states and actions, without images."""
        return self._recording.spec

    @property
    def steps(self) -> Table:
        """All recorded steps, a row each; the columns are the fields of `serl.types.Step`."""
        return self._recording.steps

    @property
    def episodes(self) -> Table:
        """All recorded episodes, a row each, with their results and final states."""
        return self._recording.episodes

    def metrics(self, kind: str = "episode") -> Table:
        """Return the rows of metrics of a kind: "episode", "update", "evaluation", "event".

        Their fields are those of the row classes in `serl.log.metrics`, whose kinds are allowed.

        Raises:
            BadInput: no such kind.
            CorruptData: a value in the file does not fit its field.
        """
        try:
            from serl.datasets.tables import metrics_table
        except ImportError as error:
            raise missing(error, "data") from error
        return metrics_table(self.path / FILE, kind)

    def transitions(self) -> Transitions:
        """Return all transitions as numpy arrays, copied from `steps` and `episodes`."""
        steps, episodes = self.steps, self.episodes
        kept = _is_trained_on(steps, episodes, 1.0 / self.spec.rate_hz)
        state, final = (_vectors(*each) for each in ((steps, "state."), (episodes, "final.")))
        after = np.roll(state, -1, axis=0)
        long = episodes["steps"] > 0
        after[(np.cumsum(episodes["steps"]) - 1)[long]] = final[long]
        return Transitions(
            state[kept],
            steps["action"][kept],
            steps["reward"][kept],
            after[kept],
            steps["terminated"][kept],
            steps["truncated"][kept],
            steps["episode"][kept],
        )

    def read_episode(self, row: int) -> Episode:
        """Read the episode in a row of `episodes`, with its images."""
        path = self._recording.paths[row]
        spec = read_spec(path)
        assert spec is not None  # it is sealed
        return read_episode(path, spec)


def open_run(run: str | Path) -> Run:
    """Open the recorded data of a run, a recording, or a folder of episode files.

    No plug-in that the settings of the run name by a path is executed.

    Raises:
        BadInput: the folder is neither a run nor a folder of episodes.
    """
    path = home_path(run)
    if path.is_dir() and episode_paths(path):
        return Run(path, None, {path.name: path})
    folder = one_part(RunFolder.open(path, data_only=True))
    actors = {name: folder.episodes(name) for name in folder.actors()}
    return Run(path, folder.config, actors)


def train(task: str | Path, runs: str | Path = "runs", **settings: Any) -> Run:
    """Train a task to the end, as `serl train` does; progress is shown here, also in a notebook.

    Args:
        task: name of a task, or path of a .py or .yaml file.
        runs: where runs are kept.
        **settings: settings of the run: mappings (`agent={"utd": 8}`), or dotted names
            (`**{"agent.utd": 8}`).

    Raises:
        BadInput: a setting is wrong, or given twice.
        SerlError: a process failed for good; `serl train --resume` goes on with the run.
        KeyboardInterrupt: the run was interrupted; everything is saved. The command to go on has
            been printed.
    """
    from serl.cli.training import offering_resume, train_run
    from serl.report.display import Display
    from serl.ros.processes import check_one_arm, require_ros
    from serl.runs.settings import run_settings

    config = run_settings(str(task), {}, _nested(settings))
    require_ros()
    check_one_arm(config)
    run = RunFolder.create(home_path(runs), config, datetime.now())
    display = Display()
    display.print_line(f"run: {run.path}")
    with offering_resume(run):
        train_run(run, display)
    return open_run(run.path)


def make_env(task: str | Path | SimulatedTask, observe: str = "state", **options: Any) -> TaskEnv:
    """Return a Gymnasium environment of a simulated task.

    Args:
        task: name of a task, path of a .py file, or a task, such as `TrainedPolicy.task`.
        observe: "state" or "pixels"; that of a given task is its own.
        **options: of `serl.gymnasium_env.TaskEnv`, such as `render_mode` or `task_config`.

    Raises:
        BadInput: no such task or option, or a wrong setting.
    """
    from serl.gymnasium_env import TaskEnv

    known = sorted(signature(TaskEnv).parameters.keys() - {"task", "observe"})
    if unknown := sorted(options.keys() - {*known}):
        guess = did_you_mean(unknown[0], known)
        raise BadInput(f"{unknown[0]}: expected one of {', '.join(known)}{guess}")
    if not isinstance(task, str | Path) and (isinstance(task, type) or not hasattr(task, "scene")):
        raise BadInput(f"task: expected a name, a path, or a task with a scene, got {short(task)}")
    return TaskEnv(str(task) if isinstance(task, Path) else task, observe=observe, **options)


def missing(error: ImportError, extra: str) -> BadInput:
    """Return the error for a package that is not installed, with the extra that has it."""
    return BadInput(f"{error.name} is not installed: pip install 'serl[{extra}]'")


def _array(name: str, values: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
    """Return a contiguous array; raise `SpecMismatch` if the values are no numbers or ragged."""
    try:
        array = np.asarray(values.detach() if hasattr(values, "detach") else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecMismatch(f"{name}: expected an array of numbers: {error}") from error
    if array.dtype.kind not in "biuf":
        found = array.dtype.type.__name__
        raise SpecMismatch(f"{name}: expected an array of numbers, got {found}")
    return np.ascontiguousarray(array, dtype)


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with dotted names as nested mappings; refuse one that is given twice."""
    nested: dict[str, Any] = {}
    for name, value in settings.items():
        given = nest(name, value)
        if twice := dict(leaves(nested)).keys() & dict(leaves(given)).keys():
            raise BadInput(f"{min(twice)}: given twice; expected one value")
        nested = merge(nested, given)
    return nested


def _is_trained_on(steps: Table, episodes: Table, period_s: float) -> np.ndarray[Any, Any]:
    """Return whether each step becomes a transition, as in `serl.training.replay.Replay.add`."""
    number, issued_s = steps["episode"], steps["monotonic_s"]
    ends = [parse_reason(text)[0] for text in episodes["reason"]]
    discarded = np.array([end is EndReason.DISCARDED for end in ends])
    script = steps["source"] == ActionSource.SCRIPT
    kept: np.ndarray[Any, Any] = (episodes["ended"] & ~discarded)[number]
    shown = np.isin(episodes["actor"], DEMONSTRATORS)
    of_person = episodes["actor"] == PERSON  # a script holds the arm while they let go
    shown |= of_person & (episodes["script_steps"] < episodes["steps"])
    kept &= ~script | shown[number]
    after = np.cumsum(episodes["steps"])
    for row in np.flatnonzero([end.is_fault for end in ends] & (episodes["steps"] > 0)):
        own, last = slice(after[row] - episodes["steps"][row], after[row]), after[row] - 1
        kept[last] &= steps["terminated"][last]  # nothing was observed after it
        kept[own] &= issued_s[own] < stuck_since_s(ends[row], issued_s[last] + period_s)
    return kept


def _vectors(table: Table, prefix: str) -> Array:
    """Return the columns of a prefix, in their order, as one matrix."""
    names = [name for name in table.arrow.column_names if name.startswith(prefix)]
    columns = [table[name].reshape(len(table), -1) for name in names]
    vectors: Array = np.concatenate([np.zeros((len(table), 0), np.float32), *columns], axis=1)
    return vectors
