"""Baseline of a run: the policy cloned from its demonstrations alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from serl.agent import State
from serl.agents.config import SACConfig
from serl.errors import BadInput
from serl.log.metrics import Row
from serl.runs.assembly import make_learner
from serl.runs.config import TrainConfig, resolve
from serl.runs.demonstrations import read_demonstrations
from serl.runs.folder import RunFolder
from serl.runs.hard_set import ROWS
from serl.runs.task_setup import make_spec, make_task
from serl.specs import ObservationSpec
from serl.system.settings_file import merge
from serl.transport import Snapshot
from serl.types import Arrival, Record

LENGTHS = (100, 500, 2000)
"""Updates of `agent.utd` steps each: a clone of few demonstrations gets worse with too many."""


_AVERAGE = 0.998
_MOTION_UNITS = ("m/s", "rad/s", "N")  # N: force and torque


def clone_settings(config: TrainConfig) -> TrainConfig:
    """Return the settings of the row "bc" of the hard set, for the task and data of a run.

    The clone observes as the run's agent does. A clone of a simulated person's demonstrations acts
    with an average of its weights and is made with noise on the arm's own motion, unless the run
    has settings of its own for these: the best clones that were found (docs/benchmarks.md,
    "Practice beyond cloning"). Of the scripted expert's demonstrations they were worse.
    """
    row = ROWS["bc"]
    apart = {"agent", "reward", "feedback", "stages", "init_from", "human"}
    shared = config.model_dump(exclude=apart)
    own = config.agent.model_dump() | {"frozen": ()} if isinstance(config.agent, SACConfig) else {}
    if own.get("encoder") == "small" and own["encoder_weights"] is None:
        own["cached_features"] = False  # the clone starts from no other run, whose encoder it needs
    fixed = merge(merge(row.usual, row.fixed), {"baseline": "none"})
    if config.demonstrator == "human":
        noise = own.get("bc_noise") or motion_noise(make_spec(make_task(config)).observation)
        average = own.get("actor_average") or _AVERAGE
        fixed = merge(fixed, {"agent": {"actor_average": average, "bc_noise": noise}})
    return resolve(shared | {"agent": own}, fixed)


def motion_noise(observation: ObservationSpec) -> dict[str, float]:
    """Return noise of one standard deviation on the entries that show an arm's own motion.

    These are velocities, forces, and the distances of the target pose from the tool ("lead"); none
    in a task that does not observe the latter, such as that of a car.
    """
    state = observation.state
    if observation.images or not any(name.endswith("lead") for name in state):
        return {}
    return {
        name: 1.0
        for name, entry in state.items()
        if name.endswith("lead") or entry.unit.startswith(_MOTION_UNITS)
    }


def clone(
    run: RunFolder, on_update: Callable[[int], object] = lambda updates: None
) -> tuple[TrainConfig, list[tuple[int, State]]]:
    """Clone the demonstrations of a run, stopping at different lengths.

    Args:
        run: the run.
        on_update: called with the number of updates so far.

    Returns:
        The settings of the clone; and its updates and actor's weights at each length.

    Raises:
        BadInput: the run has no demonstrations.
        CorruptData: a demonstration is damaged.
    """
    config = clone_settings(run.config)
    end, kept = _NoTransport(), [*_successes(run)]
    if not kept:
        raise BadInput(f"{run.path}: baseline clone: no demonstration is a success")
    short = config.model_copy(
        update={"learner": config.learner.model_copy(update={"warm_up": LENGTHS[0]})}
    )
    learner = make_learner(short, end, end, lambda *saved: None, kept, recorded=len(kept))
    clones = [(LENGTHS[0], learner.agent.actor_weights())]
    rows = config.agent.batch_size * config.agent.utd
    for before, updates in pairwise(LENGTHS):
        for update in range(before, updates):
            on_update(update)
            learner.agent.update(learner.replay.sample(rows))
        clones.append((updates, learner.agent.actor_weights()))
    return config, clones


def _successes(run: RunFolder) -> Iterator[Record]:
    """Yield the records of successful demonstrations."""
    config = run.config
    for folder in config.demo_paths or (run.demonstrations,):
        for episode in read_demonstrations(folder, config):
            if episode.success and episode.end is not None:
                yield from episode.steps
                yield episode.end


class _NoTransport:
    """A learner's end of a transport without actors, and metrics that are dropped."""

    def receive(self) -> Sequence[Arrival]:
        return ()

    def publish(self, snapshot: Snapshot) -> None:
        """Drop weights."""

    def write(self, steps: int, row: Row) -> None:
        """Drop a row."""
