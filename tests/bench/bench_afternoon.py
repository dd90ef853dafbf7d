"""Rehearsal of an afternoon at an arm, from its set-up to fifty trials of a policy from pixels.

    python tests/bench/bench_afternoon.py [--short] [--out runs/afternoon]

The arm is `serl sim reach --rehearsal`, in a process of its own and treated as a real one. Each
step is a command as a user types it, in a real ROS domain. A simulated person reads the output and
answers all questions, drives by the twist topic, and labels by services (`person_at_arm.py`). The
end is a table with the time of each step, the number of questions, and the result; the trials are
also compared with the position of the ball, which no command of serl received.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from serl.arm_profile import read_robot
from serl.errors import counted
from serl.geometry import Vector, is_in_box
from serl.log.metrics import read_metrics
from serl.ros.environment import clean_shared_memory, free_domain, ros_name
from serl.ros.node import RosNode
from serl.runs.deployment import read_trial_results
from serl.runs.folder import RunFolder
from tests.bench.person_at_arm import (
    ARM,
    Collects,
    Demonstrates,
    Helps,
    PersonAtArm,
    steers_and_rests,
)
from tests.support.command import SERL, Program

LOW, HIGH = (0.30, -0.25, 0.03), (0.65, 0.25, 0.35)
HOME = (0.47, 0.0, 0.24)  # about; the arm begins near it
BALL_M = 0.015
LIMIT_S, LOOK_S = 3600.0, 0.1
PATIENT = ("--teleop.operator.stale_s", "0.5")  # the machine is shared
TASK = """
task: touch
summary: bring the tool to the ball
time_limit_s: 8.0
motion:
  axes: [x, y, z]
  translation_m: 0.02
  box_low_m: [{low}]
  box_high_m: [{high}]
  limits: {{speed_m_s: 0.25, lead_m: 0.02}}
views:
  front: {{camera: front, width: {px}, height: {px}}}
  wrist: {{camera: wrist, width: {px}, height: {px}}}
training:
  agent: {{hidden: [128, 128], batch_size: 128, utd: 1, return_bounds: [0.0, 1.0],
    bc_warm_start: {warm_up}, bc_weight: 0.3, bc_final_weight: 0.3}}
  learner: {{warm_up: {warm_up}}}
  reset: {{range_m: 0.03}}
"""


class Size(NamedTuple):
    """Amounts of an afternoon: recordings, training, trials, and pixels of a view's side."""

    demos: int
    positives: int
    negatives: int
    classifier: str
    warm_up: int
    steps: int
    trials: int
    px: int


FULL = Size(20, 120, 300, "", 500, 1500, 50, 64)
SHORT = Size(2, 40, 60, " --epochs 2", 20, 60, 2, 16)


class Row(NamedTuple):
    """A step of the afternoon, and the questions that a person answered."""

    step: str
    command: str
    wall_s: float
    questions: list[str]
    result: str


Respond = Callable[[str, list[str]], "str | None"]
"""Takes all output and the questions so far, adds new ones, and returns what is typed, or None."""


def confirm(output: str, asked: list[str]) -> str | None:
    """Press Enter at each new question about an arm."""
    lines = [line for line in output.splitlines(True) if " | steps " not in line]
    questions = [line.strip() for line in lines if ": Enter " in line and line.endswith("\n")]
    if len(questions) == len(asked):
        return None
    asked[:] = questions
    return ""


SWINGS, LIVE = "a stop of a device counts, too.\n", "that reloads; Enter continues\n"
CHOICE, WAY = "[q] leave, to continue later ", "up down] "
PROMPTS = (
    *(CHOICE, WAY, SWINGS, LIVE, "x,y,z in m ", "e ends ", "[y/n] ", "[front] ", "[wrist] "),
    *("for all of it ", "begin, and press Enter ", "Enter begins ", "holds the arm; Enter "),
)
PROMPT = re.compile("|".join(map(re.escape, PROMPTS)))


class SetupAnswers:
    """What a person types in `serl setup` at the simulated arm; the hand cannot guide it."""

    def __init__(self) -> None:
        self._heard = 0

    def __call__(self, output: str, asked: list[str]) -> str | None:
        """Answer the newest prompt; press Enter again while the arm swings on."""
        if output.endswith((SWINGS, LIVE)):
            line = output.splitlines()[-1]
            asked += [] if asked[-1:] == [line] else [line]
            self._heard = len(output)
            return ""
        prompts = list(PROMPT.finditer(output, self._heard))
        if not prompts:
            return None
        last = prompts[-1]
        self._heard = last.end()
        asked.append(output[: last.end()].splitlines()[-1].strip())
        return self._answer(last.group(), output[: last.end()])

    @staticmethod
    def _answer(prompt: str, output: str) -> str:
        if prompt == CHOICE:
            step = re.findall(r"\d+/10 (\w+): ", output)[-1]
            return "s a simulated arm has none" if step == "stop_button" else ""
        if prompt == WAY:
            axis = re.findall(r"\+([xyz]): which way", output)[-1]
            return {"x": "forward", "y": "left", "z": "up"}[axis]
        if prompt == "x,y,z in m ":
            nearest = "nearest" in output.splitlines()[-1]
            return ",".join(map(str, LOW if nearest else HIGH))
        return {"e ends ": "e", "[y/n] ": "y"}.get(prompt, "")


class Person(Protocol):
    """A simulated person, as each step of a rehearsal calls it."""

    @property
    def is_leaving(self) -> bool:
        """Whether the process was asked to end."""
        ...

    def press(self) -> None:
        """Call the services that the person wants to call."""
        ...

    def leave(self) -> None:
        """Stop acting."""
        ...


class Afternoon:
    """The steps of an afternoon in one folder, and their rows.

    Args:
        folder: working directory of all commands, and of the files with their output.
        person: the person at the arm.
        arm: the process of the rehearsal arm.
    """

    def __init__(self, folder: Path, person: Person, arm: Program) -> None:
        self.rows: list[Row] = []
        self._folder, self._person, self._arm = folder, person, arm

    def perform(
        self,
        step: str,
        words: str,
        result: Callable[[str], str],
        respond: Respond = confirm,
        begin: Callable[[Program], object] = lambda program: None,
        partial: str = "",
    ) -> str:
        """Run a command to its end, with the person; return its output.

        Args:
            step: name of the step.
            words: the command, after `serl`.
            result: summarises the result, given the output.
            respond: answers the questions of the command.
            begin: called once when the command has started; the person then acts.
            partial: words in the output with which exit code 1 is a result, not a failure.

        Raises:
            SystemExit: the command failed; its output was printed.
        """
        print(f"$ serl {words}", flush=True)
        asked, began_s = list[str](), time.monotonic()
        with Program([*SERL, *shlex.split(words)], self._folder / f"{step}.out") as program:
            begin(program)
            while program.is_running and time.monotonic() - began_s < LIMIT_S:
                if not self._arm.is_running:
                    break
                if self._person.is_leaving:  # Ctrl-C
                    raise KeyboardInterrupt
                if (answer := respond(program.output, asked)) is not None:
                    with suppress(BrokenPipeError):  # it has just ended
                        program.say(answer)
                self._person.press()
                time.sleep(LOOK_S)
        self._person.leave()
        wall_s, output = time.monotonic() - began_s, program.output
        ended = program.process.returncode
        if ended == 1 and partial and partial in output:
            ended = 0
        self.rows.append(Row(step, words, wall_s, asked, "failed" if ended else result(output)))
        if ended:
            print(f"{output}\nexit code {ended}\n--- the arm\n{self._arm.output[-3000:]}")
            print(table(self.rows))
            raise SystemExit(1)
        print(f"  {wall_s:.0f} s, {len(asked)} questions: {self.rows[-1].result}", flush=True)
        return output


def spend(folder: Path, size: Size, person: PersonAtArm, arm: Program) -> list[Row]:
    """Run all steps; return their rows."""
    (folder / "touch.yaml").write_text(task_of(size))
    afternoon = Afternoon(folder, person, arm)
    at_arm = f"--robot cell.yaml --namespace {ARM}"
    patient, rng = " ".join(PATIENT), np.random.default_rng(0)
    afternoon.perform(
        "setup",
        f"setup sim --namespace {ARM} --out cell.yaml",
        lambda output: setup_result(folder / "cell.yaml"),
        SetupAnswers(),
        lambda program: person.begin(ARM, steers_and_rests),
    )
    afternoon.perform(
        "record",
        f"record touch.yaml {at_arm} --demos {size.demos} --out demos {patient}",
        lambda output: found(r"^(\d+ demonstrations in \S+; stored separately: .*)$", output),
        begin=lambda program: person.begin("/demos/person", Demonstrates()),
    )
    afternoon.perform(
        "collect",
        f"reward collect touch.yaml {at_arm} --positives {size.positives} "
        f"--negatives {size.negatives} --out images {patient}",
        lambda output: found(r"^(\d+ positives and \d+ negatives) in", output),
        begin=lambda program: person.begin("/images/person", Collects((LOW, HIGH), rng)),
    )
    afternoon.perform(
        "classifier",
        f"reward train images --out touch.safetensors{size.classifier}",
        lambda output: found(r"^  accuracy +(.*)$", output),
    )
    output = afternoon.perform(
        "train",
        f"train touch.yaml {at_arm} --demos demos --reward.kind classifier "
        f"--reward.model touch.safetensors --steps {size.steps} --trials 0 {patient}",
        lambda output: training_result(run_of(folder, output)),
        begin=lambda program: person.begin(actor_of(program), Helps()),
    )
    run = run_of(folder, output)
    path = run.path.relative_to(folder)
    afternoon.perform(
        "trials",
        f"run {path} {at_arm} --episodes {size.trials} --out trials",
        lambda output: trials_result(folder / "trials", output, person.sight.ball),
        partial="ended after",
    )
    afternoon.perform(
        "verify", f"verify {path}", lambda output: found(r"^(lost \d+, duplicated .*)$", output)
    )
    return afternoon.rows


def task_of(size: Size) -> str:
    """Return the file of the task."""
    low, high = (", ".join(map(str, corner)) for corner in (LOW, HIGH))
    return TASK.format(low=low, high=high, px=size.px, warm_up=size.warm_up)


def actor_of(program: Program) -> str:
    """Wait for the folder of a training; return the prefix of its actor's topics."""
    return f"/{ros_name(program.run_folder().name)}/actor0"


def run_of(folder: Path, output: str) -> RunFolder:
    """Return the run of a training, from its output."""
    return RunFolder.open(folder / found(r"^run: (.*)$", output))


def found(pattern: str, output: str) -> str:
    """Return the first group of a pattern in an output; the last line without a match."""
    match = re.search(pattern, output, re.MULTILINE)
    return match.group(1).strip() if match else output.strip().splitlines()[-1]


def setup_result(path: Path) -> str:
    """Return the number of steps of the set-up that were done, and the names of the others."""
    trials = read_robot(path).setup
    skipped = [name for name, trial in trials.items() if trial.skipped]
    return f"{len(trials) - len(skipped)} steps done, skipped: {', '.join(skipped)}"


def training_result(run: RunFolder) -> str:
    """Return the share of a person's steps, and the successes of the last episodes."""
    episodes = [row for row in read_metrics(run.metrics) if row["kind"] == "episode"]
    steps, human = (sum(row[name] for row in episodes) for name in ("length", "human_steps"))
    alone = [bool(row["success"]) for row in episodes if not row["assisted"]][-20:]
    takeovers = sum(row["interventions"] for row in episodes)
    return (
        f"{counted(len(episodes), 'episode')}, {counted(takeovers, 'takeover')} with "
        f"{human / max(1, steps):.0%} of the steps, "
        f"{sum(alone)} of the last {len(alone)} unassisted ones succeeded"
    )


def trials_result(folder: Path, output: str, ball: Vector) -> str:
    """Return the result that is printed, and the number of successes that ended at the ball."""
    lines = (folder / "episodes/actor0/tools.jsonl").read_text().splitlines()
    tools = {row["episode"]: row["tools_m"][-1] for row in map(json.loads, lines)}
    ends = [tools[each.log_count - 1] for each in read_trial_results(folder) if each.success]
    there = sum(math.dist(end, ball) < BALL_M for end in ends)
    partial = r"ended after .*: \d+ of \d+ valid, of which \d+ succeeded"
    printed = found(rf"^(\d+ of \d+ trials succeeded.*?|{partial}):", output)
    return f"{printed}; {there} of {len(ends)} successes ended within {1e3 * BALL_M:.0f} mm of it"


def table(rows: list[Row]) -> str:
    """Return the table of the steps, and the questions of each."""
    lines = ["\n| step | command | wall time | questions | result |", "|---|---|---|---|---|"]
    for row in rows:
        minutes = f"{row.wall_s // 60:.0f}:{row.wall_s % 60:02.0f}"
        count = len(row.questions)
        lines.append(f"| {row.step} | `serl {row.command}` | {minutes} | {count} | {row.result} |")
    total_s = sum(row.wall_s for row in rows)
    total = sum(len(row.questions) for row in rows)
    lines.append(f"| together | | {total_s / 60:.0f} minutes | {total} | |\n\nquestions:")
    for row in rows[1:]:
        for question, count in Counter(row.questions).items():
            lines.append(f"- {row.step}, {count} times: {question}")
    return "\n".join(lines)


def is_reachable(ball: Vector) -> bool:
    """Return whether the ball is inside the box, with a margin, and away from home."""
    low, high = ([v + sign * 0.02 for v in c] for c, sign in ((LOW, 1), (HIGH, -1)))
    inside = is_in_box(ball, (low[0], low[1], low[2]), (high[0], high[1], high[2]))
    return inside and math.dist(ball, HOME) > 0.12


@contextmanager
def rehearsal_arm(folder: Path, px: int) -> Iterator[Program]:
    """Run the rehearsal arm, with two cameras of this size."""
    views = ", ".join(
        f"{name}: {{camera: {name}, width: {px}, height: {px}}}" for name in ("front", "wrist")
    )
    words = f"sim reach --rehearsal --observe pixels --task_config.views '{{{views}}}'"
    words += " --task_config.renderer ray"
    print(f"$ serl {words}", flush=True)
    with Program([*SERL, *shlex.split(words)], folder / "sim.out") as arm:
        arm.until(f"topics and services under {ARM}")
        yield arm


def main() -> None:
    """Spend the afternoon, and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--short", action="store_true", help="a few minutes, without learning")
    parser.add_argument("--out", type=Path, default=Path("runs/afternoon"), help="a new folder")
    options = parser.parse_args()
    folder, size = options.out.resolve(), SHORT if options.short else FULL
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder}: expected a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    with free_domain() as domain:
        os.environ |= {"ROS_DOMAIN_ID": str(domain.id), "SERL_SHARED_MEMORY": "1"}
        with (
            rehearsal_arm(folder, size.px) as arm,
            RosNode("person", folder / "person", local=True) as node,
        ):
            person = PersonAtArm(node)
            if not person.wait_for_sight():
                raise SystemExit(f"the arm is not seen\n{arm.output}")
            person.place_ball(is_reachable)
            print(table(spend(folder, size, person, arm)))
    clean_shared_memory()


if __name__ == "__main__":
    main()
