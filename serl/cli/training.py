"""`serl train`: demonstrations, a learner and actors over ROS 2, the final trials, the report."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from serl import plugins
from serl.agent import State
from serl.arm_profile import is_real
from serl.cli.arguments import quoted
from serl.cli.run import deploy, deployment
from serl.cli.terminal import at_the_terminal, print_cut_boxes
from serl.errors import BadInput, CorruptData, SerlError, counted
from serl.log.episode_log import EpisodeLog
from serl.log.episode_reader import episode_paths
from serl.log.metrics import EvaluationRow, MetricsRow, MetricsWriter, TrialPurpose, read_metrics
from serl.loop import EpisodeKey
from serl.report.curves import assistance, quarters
from serl.report.display import Display, Summary, print_summary
from serl.report.progress import ProgressReader, with_waiting
from serl.report.report import write_report, write_stages_report
from serl.ros.processes import actor_names, all_processes, learner_processes, prefix, run_processes
from serl.ros.real_arm import arms_behind_guards
from serl.runs import baseline
from serl.runs.checkpoint import Checkpoint, candidates, checkpoint_paths, load, mark_best, pick
from serl.runs.config import TrainConfig
from serl.runs.demonstrations import EXPERT, record_expert
from serl.runs.deployment import read_trial_results, trials_command, unassisted
from serl.runs.folder import RunFolder
from serl.runs.real_arm import describe_classifier_bounds
from serl.runs.resume import trained_steps
from serl.runs.task_setup import make_demonstrated_task, make_spec, make_task
from serl.runs.trials import Examiner, choose_checkpoint
from serl.system.supervisor import is_orphaned
from serl.system.video import write_video
from serl.teleop.scripted import ScriptedHumanConfig
from serl.training.evaluation import Evaluation, Purpose, evaluation_seeds
from serl.training.link import read_control_status

POLL_S = 0.25
GRACE_S = 30.0  # for a learner to end after its actors
FILM_TRIALS = 3
FILM_SIZE = (640, 480)


def train_run(
    run: RunFolder, display: Display, supervise: Callable[[], object] = lambda: None
) -> bool:
    """Train to the end, continuing where the run was interrupted.

    Args:
        run: run to train.
        display: shows the progress.
        supervise: called repeatedly while processes run; supervises other processes.

    Returns:
        Whether the final trials are complete and reached `required_success_rate`.

    Raises:
        SerlError: a process failed for good; the run can be resumed.
        KeyboardInterrupt: Ctrl-C; everything was stopped cleanly, the run can be resumed.
    """
    parts = run.parts()
    for part in parts.values():
        demonstrate(part, display)
    if not all(part.is_trained() for part in parts.values()):
        learn(run, display, supervise)
    good = all([_conclude(stage, part, display, supervise) for stage, part in parts.items()])
    if run.config.stages:
        with display.working("writing the report"):
            helped = write_stages_report(run)
        display.print_line(f"all stages: {helped}\nreport: {run.report}")
    return good


@contextmanager
def offering_resume(run: RunFolder) -> Iterator[None]:
    """Print the command that goes on with the run if the block fails or is interrupted."""
    try:
        yield
    except BadInput:
        raise
    except (SerlError, KeyboardInterrupt):
        print(f"to continue: serl train --resume {quoted(run.path)}", file=sys.stderr)
        raise


def _conclude(
    stage: str, run: RunFolder, display: Display, supervise: Callable[[], object] = lambda: None
) -> bool:
    """Run the final trials and write the report; return whether the policy is good enough."""
    real = is_real(run.config.robot)
    evaluation = try_on_arm(run, display, supervise) if real else examine(run, display)
    rows = read_metrics(run.metrics)
    episodes = _episodes(rows)
    if evaluation is not None and evaluation.early_end:
        display.print_line(f"the final trials {evaluation.early_end}")
    cloned = examine_clone(run, display) if run.config.baseline == "clone" else None
    finals = [row for row in rows if row.get("purpose") == "final"]
    practised = bool(episodes and finals and finals[-1]["checkpoint"])
    with display.working("writing the report"):
        report = write_report(run.path)
    summary = Summary(
        task=_title(run, stage),
        folder=run.path,
        evaluation=evaluation,
        steps=trained_steps(run),
        duration_s=rows[-1]["time_s"],
        human_shares=[quarter.human_share for quarter in quarters(episodes)],
        help=assistance(rows),
        report=report,
        clone=cloned,
        practice_s=episodes[-1]["time_s"] if practised else None,
        inherited=begins_inherited(run.config),
    )
    print_summary(display.console, summary)
    return suffices(run.config, evaluation)


def begins_inherited(config: TrainConfig) -> bool:
    """Return whether the policy at the first step is that of another run, without a warm-up."""
    given = config.init_from
    return given.run is not None and (not config.learner.warm_up or given.loads("critics"))


def suffices(config: TrainConfig, evaluation: Evaluation | None) -> bool:
    """Return whether the final trials are complete and reached `required_success_rate`.

    Without trials, return True.
    """
    required = config.required_success_rate
    if evaluation is not None and evaluation.early_end:
        return False
    if required is None or not config.trials:
        return True
    return evaluation is not None and evaluation.success_rate >= required


def demonstrate(run: RunFolder, display: Display) -> None:
    """Record the expert's demonstrations, all or none; an interrupted recording is restarted.

    Raises:
        BadInput: another process holds the learner's lock.
    """
    config = run.config
    if config.demo_paths or episode_paths(run.demonstrations) or not config.demos:
        return
    by_hand = config.demonstrator == "human"
    whose = "a simulated person" if by_hand else "the scripted expert"
    display.print_line(f"recording {counted(config.demos, 'demonstration')} of {whose}")
    is_self_rewarded = config.reward.success_kind in (
        "human",
        "vice",
        "topic",
    )  # the expert's own success
    task = make_demonstrated_task(config, with_reward=not is_self_rewarded)
    key = EpisodeKey(run.name, EXPERT, time.time_ns(), 0)
    scratch = run.path / ".demonstrations"
    with run.lock_learner(), plugins.make_simulation(task) as robot:
        shutil.rmtree(scratch, ignore_errors=True)
        with (
            EpisodeLog(scratch, make_spec(task), key.run, key.actor, key.epoch, config.log) as log,
            display.counting("demonstrations", config.demos) as advance,
        ):
            record_expert(
                robot,
                task,
                log.append,
                config.demos,
                config.seed,
                key,
                progress=lambda kept, failed: advance(kept),
                by_hand=by_hand,
            )
        scratch.rename(run.demonstrations)


def learn(run: RunFolder, display: Display, supervise: Callable[[], object] = lambda: None) -> None:
    """Run learners and actors over ROS 2 until all steps of each stage are trained on."""
    parts = run.parts()
    readers = [
        ProgressReader.of_run(part, _title(part, stage), f"{prefix(stage)}link-")
        for stage, part in parts.items()
    ]
    learners = [f"{prefix(stage)}learner" for stage in parts]
    printed, deserted_s = 0, math.inf
    actors = actor_names(run) if any(part.config.steps for part in parts.values()) else []
    processes = all_processes(run) if actors else learner_processes(run)
    if actors and run.config.intervention != "none":
        display.print_line(_simulated_human(run.config))
    if line := describe_classifier_bounds(run.config, make_task(run.config)):
        display.print_line(line)
    print_cut_boxes(run.config, run.config.robot)
    with (
        run_processes(run, processes) as supervisor,
        at_the_terminal(run, arms_behind_guards(run, actors)) as attend,
        display,
    ):
        while not all(map(supervisor.finished, learners)):
            supervisor.check()
            if is_orphaned():  # a sweep that was killed resumes the run itself
                raise KeyboardInterrupt
            supervise()
            waiting = attend()
            if not (actors and all(supervisor.finished(name) for name in actors)):
                deserted_s = time.monotonic() + GRACE_S
            elif time.monotonic() > deserted_s:
                raise SerlError("all actors ended before the training was complete")
            progress = [reader.read(supervisor.states()) for reader in readers]
            behind = min(progress, key=lambda each: each.steps or 0)
            display.update(with_waiting(behind, waiting))
            news = [event for reader in readers for event in reader.news()]
            for event in (*supervisor.events[printed:], *news):
                display.print_line(event)
            printed = len(supervisor.events)
            time.sleep(POLL_S)
    for name in actors:
        if control := read_control_status(run.link(name)):
            display.print_line(
                f"{name}: {control.late:,} of {control.periods:,} control periods began late by "
                f"over a tenth of a period ({control.share:.1%}), "
                f"{control.delayed:,} actions came more than 1.5 periods late"
            )


def _simulated_human(config: TrainConfig) -> str:
    human = config.human
    if not isinstance(human, ScriptedHumanConfig):
        return f"a simulated human may drive: {config.intervention}"
    mean = 0.75 * 0.5 * (human.share + human.final_share) + 0.25 * human.final_share
    most = min(config.steps, mean * config.steps + human.bucket_steps)
    return (
        f"a simulated human may drive {human.share:.0%} of the steps at first, falling to "
        f"{human.final_share:.0%} at step {0.75 * config.steps:,.0f}: in all at most "
        f"{most:,.0f} of {config.steps:,} steps"
    )


def examine(run: RunFolder, display: Display) -> Evaluation:
    """Choose the best checkpoint, run the final trials on it once, and film some.

    The last checkpoints are compared and, if training began with a warm-up, the one after it. The
    last checkpoint is tried on the same starts, as it is used where no ground truth selects one.
    """
    config = run.config
    paths = candidates(run.checkpoints, config.selection_checkpoints)
    if not paths:
        raise BadInput(f"{run.path}: no checkpoint to evaluate")
    compared = _load_undamaged(paths, display)
    trials = counted(config.trials, "final trial")
    display.print_line(f"comparing {counted(len(compared), 'checkpoint')}, then {trials}")
    with run.lock_learner(), MetricsWriter(run.path, wandb=run.config.log.wandb) as metrics:
        examiner = Examiner(config)

        def report(step: int, evaluation: Evaluation, purpose: TrialPurpose = "selection") -> None:
            metrics.write(trained_steps(run), _row(step, evaluation, purpose))
            won, trials = evaluation.successes, len(evaluation.trials)
            void = f", {evaluation.void_text}" if evaluation.void else ""
            display.print_line(
                f"checkpoint {step:,}: {won} of {trials} {purpose} trials succeeded{void}"
            )

        weights = [(step, found.arrays["actor"]) for step, found in compared.items()]
        planned = len(weights) * config.selection_trials
        with display.counting("trials", planned) as examiner.on_trial:
            chosen = choose_checkpoint(config, examiner, weights, report)
        mark_best(compared[chosen].path)
        winner, (last, newest) = compared[chosen].arrays["actor"], weights[-1]
        planned = config.trials * (1 if last == chosen else 2)
        with display.counting("final trials", planned) as examiner.on_trial:
            if last != chosen:
                report(last, examiner.evaluate(newest, Purpose.FINAL, config.trials), "last")
            evaluation = examiner.evaluate(winner, Purpose.FINAL, config.trials)
            report(chosen, evaluation, "final")
    try:
        film(run, examiner, winner, run.videos / "final.mp4", display, config.trials)
    except SerlError as error:  # the results are valid without a film
        display.print_line(f"no film of the trials: {error}")
    return evaluation


def examine_clone(run: RunFolder, display: Display) -> Evaluation:
    """Clone the run's demonstrations alone, and run the final trials with the best clone."""
    display.print_line("cloning the demonstrations alone, as the baseline")
    with display.counting("updates of the clone", baseline.LENGTHS[-1]) as on_update:
        config, clones = baseline.clone(run, on_update)
    planned = len(clones) * config.selection_trials + config.trials
    with (
        run.lock_learner(),
        MetricsWriter(run.path, wandb=run.config.log.wandb) as metrics,
        display.counting("trials", planned) as on_trial,
    ):
        examiner = Examiner(config, on_trial=on_trial)
        chosen = choose_checkpoint(config, examiner, clones)
        evaluation = examiner.evaluate(dict(clones)[chosen], Purpose.FINAL, config.trials)
        metrics.write(trained_steps(run), _row(0, evaluation, "clone"))
    return evaluation


def try_on_arm(
    run: RunFolder, display: Display, supervise: Callable[[], object] = lambda: None
) -> Evaluation | None:
    """Run trials of the policy on the real arm of its training; None without trials.

    The newest checkpoint is tried. With `arm_selection_trials`, alternating trials of the last ones
    select one first, as no simulation predicts their results; see `serl.runs.race`.

    Raises:
        KeyboardInterrupt: Ctrl-C; a resumed run restarts the trials.
    """
    config = run.config
    command = trials_command(run)
    if not config.trials:
        display.print_line(f"no trials were requested; on the arm: {command}")
        return None
    checkpoint, candidates = pick(run.checkpoints), list[Path]()
    if config.arm_selection_trials:
        last = checkpoint_paths(run.checkpoints)[-config.selection_checkpoints :]
        *candidates, checkpoint = (found.path for found in _load_undamaged(last, display).values())
    display.print_line(f"{config.trials} unassisted trials on the arm, as with: {command}")
    deployed = deployment(run, config)
    most = config.arm_selection_trials
    deploy(deployed, checkpoint, config.trials, candidates, most, supervise)
    results = read_trial_results(deployed.path)
    evaluation = unassisted(results, planned=config.trials)
    with run.lock_learner(), MetricsWriter(run.path, wandb=run.config.log.wandb) as metrics:
        for path in (*candidates, checkpoint) if candidates else ():
            tried = unassisted(results, "selection", int(path.name))
            if tried is not None:
                metrics.write(trained_steps(run), _row(int(path.name), tried, "selection"))
        if evaluation is not None:
            finals = [each.checkpoint for each in results if each.purpose == "final"]
            step = finals[0] if finals else int(checkpoint.name)
            if candidates and evaluation.trials:
                mark_best(run.checkpoints / f"{step:08d}")
            metrics.write(trained_steps(run), _row(step, evaluation, "final"))
    return evaluation


def evaluate(
    run: RunFolder, trials: int, step: int | None, display: Display, sampled: bool = False
) -> tuple[Evaluation, Callable[[], Path]]:
    """Run trials of a checkpoint (the best by default) on the final starts.

    Args:
        run: the run.
        trials: number of trials.
        step: steps of the checkpoint; None for the best.
        display: shows the progress.
        sampled: sample actions as in training, whatever `trial_actions` says.

    Returns:
        The evaluation, and a function that films some of the trials and returns the film's path.

    Raises:
        BadInput: the checkpoint does not exist, or was trained on a real arm.
    """
    if is_real(robot := run.config.robot):
        raise BadInput(
            f"{run.path}: was trained on {robot}; simulated trials do not measure a real arm: "
            f"{trials_command(run)}"
        )
    path = pick(run.checkpoints, step)
    actions = {"trial_actions": "sampled"} if sampled else {}
    weights = load(path).arrays["actor"]
    with display.counting("trials", trials) as on_trial:
        examiner = Examiner(run.config.model_copy(update=actions), on_trial=on_trial)
        evaluation = examiner.evaluate(weights, Purpose.FINAL, trials)
    video = run.videos / f"eval-{path.name}.mp4"
    return evaluation, lambda: film(run, examiner, weights, video, display, trials)


def film(
    run: RunFolder, examiner: Examiner, weights: State, path: Path, display: Display, trials: int
) -> Path:
    """Film the first of the final trials at twice their speed, with every second step."""
    count = min(trials, FILM_TRIALS)
    seeds = evaluation_seeds(Purpose.FINAL, run.config.seed, count)
    with display.counting("filmed trials", count) as examiner.on_trial:
        frames = examiner.film(weights, seeds, FILM_SIZE)
    write_video(path, frames, make_task(run.config).config.rate_hz)
    return path


def _load_undamaged(paths: Sequence[Path], display: Display) -> dict[int, Checkpoint]:
    """Load checkpoints by step; damaged ones are reported and skipped, unless all are damaged."""
    found = {}
    for path in paths:
        try:
            found[int(path.name)] = load(path)
        except CorruptData as error:
            display.print_line(f"skipped: {error}")
            if path == paths[-1] and not found:
                raise
    return found


def _title(run: RunFolder, stage: str) -> str:
    return f"{run.config.task} {stage}".strip()


def _episodes(rows: list[MetricsRow]) -> list[MetricsRow]:
    return [row for row in rows if row["kind"] == "episode"]


def _row(step: int, evaluation: Evaluation, purpose: TrialPurpose) -> EvaluationRow:
    return EvaluationRow(
        checkpoint=step,
        trials=len(evaluation.trials),
        successes=evaluation.successes,
        cycle_time_s=evaluation.cycle_time_s,
        purpose=purpose,
        void=evaluation.void_text,
        early_end=evaluation.early_end,
    )
