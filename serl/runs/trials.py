"""Unassisted trials of a trained policy in simulation, and the choice of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

from serl import plugins
from serl.agent import Agent, State
from serl.clock import VirtualClock
from serl.loop import EpisodeKey, Observer, RecordCallback, run
from serl.policy import Policy
from serl.robot import SimulatedRobot
from serl.runs.assembly import make_acting_agent
from serl.runs.config import TrainConfig
from serl.runs.task_setup import make_spec, make_task
from serl.system.video import Caption, draw_caption
from serl.task import SimulatedTask
from serl.training.evaluation import (
    Evaluation,
    Purpose,
    Trial,
    evaluate,
    evaluation_seeds,
    max_void_trials,
    void_cause,
)
from serl.training.frames import FrameStack
from serl.types import ActionSource, Image, Record, Step


class Examiner:
    """Runs trials of policies on one simulated arm, without a human.

    Args:
        config: settings of the run.
        robot: the simulated arm, possibly in another process; None for one in this process.
        on_trial: called after each trial of an evaluation or a film.

    Attributes:
        on_trial: as given.
    """

    def __init__(
        self,
        config: TrainConfig,
        robot: SimulatedRobot | None = None,
        on_trial: Callable[[], None] = lambda: None,
    ) -> None:
        self._config, self.on_trial = config, on_trial
        self._task: SimulatedTask = make_task(config)
        self._robot = robot or plugins.make_simulation(self._task)
        self._agent: Agent = make_acting_agent(config, make_spec(self._task), 0)

    def evaluate(self, weights: State, purpose: Purpose, trials: int) -> Evaluation:
        """Run trials of one policy on the starts of a purpose; void ones are repeated elsewhere."""
        self._agent.load_actor_weights(weights)
        seeds = evaluation_seeds(purpose, self._config.seed, trials + max_void_trials(trials))

        def run_episode(seed: int) -> Trial:
            trial = self._trial(seed)
            self.on_trial()
            return trial

        return evaluate(run_episode, seeds, trials)

    def film(self, weights: State, seeds: Iterable[int], size: tuple[int, int]) -> list[Image]:
        """Run trials from these starts; return their frames with captions."""
        self._agent.load_actor_weights(weights)
        frames: list[Image] = []
        with closing(plugins.make_renderer(self._robot, supersampling=2)) as camera:
            for number, seed in enumerate(seeds, 1):

                def shoot(record: Record, number: int = number) -> None:
                    if record.key.index % 2 and isinstance(record, Step):
                        return  # every second step is enough for a film
                    frames.append(_add_caption(camera.frame("front", *size), record, number))

                self._trial(seed, RecordCallback(shoot))
                self.on_trial()
        return frames

    def _trial(self, seed: int, *observers: Observer) -> Trial:
        self._robot.reset(seed)
        explore = self._config.trial_actions == "sampled"
        stack = FrameStack(self._config.agent.frames)
        return _trial(
            self._task,
            self._robot,
            lambda observation: self._agent.act(stack(observation), explore),
            seed,
            observers,
        )


def evaluate_expert(config: TrainConfig, on_trial: Callable[[], None] = lambda: None) -> Evaluation:
    """Run the final trials of a run, by the task's expert; call `on_trial` after each."""
    task = make_task(config)

    def trial(seed: int) -> Trial:
        robot.reset(seed)
        result = _trial(task, robot, task.expert(robot.truth, seed), seed, ())
        on_trial()
        return result

    with plugins.make_simulation(task) as robot:
        return evaluate(trial, evaluation_seeds(Purpose.FINAL, config.seed, config.trials))


def _trial(
    task: SimulatedTask,
    robot: SimulatedRobot,
    policy: Policy,
    seed: int,
    observers: Sequence[Observer],
) -> Trial:
    """Run one trial from the robot's present state, which is the start of this seed."""
    rate_hz = task.config.rate_hz
    clock = VirtualClock(robot.advance, rate_hz)
    key = EpisodeKey("evaluation", "examiner", 0, 0)
    result = run(robot, task, policy, clock, key, observers)
    # The task's own result may come from a learned reward; the ground truth has to agree.
    success = result.success and task.is_success(robot.truth())
    void = void_cause(result.reason, result.fault)
    return Trial(seed, success, result.steps, result.steps / rate_hz, result.text, void)


def choose_checkpoint(
    config: TrainConfig,
    examiner: Examiner,
    candidates: Sequence[tuple[int, State]],
    on_evaluation: Callable[[int, Evaluation], None] = lambda step, evaluation: None,
) -> int:
    """Return the step of the best candidate, by trials on selection starts; of equals the latest.

    Args:
        config: settings of the run.
        examiner: runs the trials.
        candidates: step and actor weights of each checkpoint, oldest first.
        on_evaluation: called with the step and the evaluation of each candidate.
    """
    best, chosen = -1, 0
    for step, weights in candidates:
        evaluation = examiner.evaluate(weights, Purpose.SELECTION, config.selection_trials)
        on_evaluation(step, evaluation)
        if evaluation.successes >= best:
            best, chosen = evaluation.successes, step
    return chosen


def _add_caption(frame: Image, record: Record, number: int) -> Image:
    if isinstance(record, Step):
        caption = Caption(record.source, record.key.index, number, record.reward)
    else:
        caption = Caption(ActionSource.POLICY, record.key.index, number, None, record.success)
    return draw_caption(frame, caption)
