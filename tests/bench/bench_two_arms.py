"""Training of `handover` on two rehearsal arms, from demonstrations to the trials of its policy.

    python tests/bench/bench_two_arms.py [--demos 15] [--steps 3000] [--trials 50] [--out FOLDER]

The arms are `serl sim handover --rehearsal`, in a process of their own and treated as real ones.
Each step is a command as a user types it, in a real ROS domain. A simulated person answers all
questions, puts the bar back, and drives both arms by the topics of two devices
(`person_at_pair.py`). The agent clones what the person does
(HG-DAgger). It takes about 50 minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from serl.arm_pair import read_pair
from serl.ros.environment import clean_shared_memory, free_domain
from serl.ros.node import RosNode
from serl.tasks.handover import Handover
from tests.bench.bench_afternoon import (
    PATIENT,
    Afternoon,
    actor_of,
    confirm,
    found,
    run_of,
    table,
    training_result,
)
from tests.bench.person_at_pair import PersonAtPair, patient
from tests.support.command import SERL, Program

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
LIMIT_S = 25.0  # of an episode: a person at a device is slower than the expert in the simulation
BAR = (
    "--reset.check pose --reset.body bar "
    "--reset.body_low_m [0.37,-0.11,0.0] --reset.body_high_m [0.48,0.11,0.03]"
)


def rehearse(folder: Path, person: PersonAtPair, arms: Program, options: argparse.Namespace) -> str:
    """Record, train and try the policy; return the table of the steps."""
    rehearsal, pair = Afternoon(folder, person, arms), "--robot pair.yaml"
    limit = f"--task_config.time_limit_s {LIMIT_S:g}"

    def answer(output: str, asked: list[str]) -> str | None:
        answered = confirm(output, asked)
        if answered is not None and "bar is" in asked[-1]:
            person.restore()
        return answered

    rehearsal.perform(
        "record",
        f"record handover {pair} --demos {options.demos} --out demos {limit} {' '.join(PATIENT)}",
        lambda output: found(r"^(\d+ demonstrations? in \S+; stored separately: .*)$", output),
        begin=lambda program: person.begin("/demos/person", person.demonstrates()),
    )
    output = rehearsal.perform(
        "train",
        f"train handover {pair} --agent.algorithm bc --demos demos --trials 0 "
        f"--steps {options.steps} {BAR} {limit} {' '.join(PATIENT)}",
        lambda output: training_result(run_of(folder, output)),
        answer,
        lambda program: person.begin(actor_of(program), person.helps(options.steps)),
    )
    rehearsal.perform(
        "trials",
        f"run {run_of(folder, output).path.relative_to(folder)} {pair} "
        f"--episodes {options.trials} --out trials",
        partial(found, r"^(\d+ of \d+ trials succeeded.*?|ended after .* succeeded):"),
        answer,
        partial="ended after",
    )
    return table(rehearsal.rows)


def main() -> None:
    """Train on two arms, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--demos", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("runs/two_arms"), help="a new folder")
    options = parser.parse_args()
    folder = options.out.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder}: expected a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("pair.yaml", "pair_arm.yaml"):
        shutil.copy(EXAMPLES / name, folder / name)
    pair = read_pair(str(folder / "pair.yaml"))
    assert pair is not None
    config = Handover().config
    motions = {name: patient(getattr(config, name)) for name in ("motion", "right_motion")}
    with free_domain() as domain:
        os.environ |= {"ROS_DOMAIN_ID": str(domain.id), "SERL_SHARED_MEMORY": "1"}
        words = shlex.split("sim handover --rehearsal --task_config.renderer none")
        with (
            Program([*SERL, *words], folder / "sim.out") as arms,
            RosNode("person", folder / "person", local=True) as node,
        ):
            arms.until("topics and services under /sim/left and /sim/right")
            person = PersonAtPair(node, Handover(config.model_copy(update=motions)), pair, 100)
            print(rehearse(folder, person, arms, options))
    clean_shared_memory()


if __name__ == "__main__":
    main()
