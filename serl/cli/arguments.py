"""Parsing of command lines: one-line errors that name the remedy, and arguments that many share."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from serl.errors import BadInput, did_you_mean
from serl.system.files import check_destination, expand_home, home_path

WIDTH = 100
_INVALID = re.compile(r"invalid (\w+) value: (.*)", re.DOTALL)
_CHOICE = re.compile(r"invalid choice: (.*) \(choose from (.*)\)", re.DOTALL)
_KINDS = {"int": "a whole number", "float": "a number"}

FORMER = {
    "batch_size": "agent.batch_size",
    "buffer_capacity": "learner.capacity",
    "checkpoint_path": "resume",
    "checkpoint_period": "learner.checkpoint_every",
    "config_path": "config",
    "critic_actor_ratio": "agent.utd",
    "dataset.num_episodes": "demos",
    "dataset.root": "demos",
    "demo_path": "demos",
    "device": "agent.device",
    "discount": "agent.discount",
    "env": "task",
    "env.task": "task",
    "env.type": "task",
    "episodes": "trials demos",
    "eval.n_episodes": "trials",
    "eval_checkpoint_step": "checkpoint",
    "eval_n_trajs": "trials",
    "fps": "task_config.rate_hz",
    "gamma": "agent.discount",
    "gpu": "agent.device",
    "lr": "agent.learning_rate",
    "max_steps": "steps",
    "n_episodes": "trials demos",
    "num_envs": "actors",
    "num_episodes": "demos trials",
    "output_dir": "runs",
    "policy.device": "agent.device",
    "policy.path": "init_from",
    "policy.pretrained_path": "init_from",
    "policy.type": "agent.algorithm",
    "random_steps": "learner.starts_at",
    "replay_buffer_capacity": "learner.capacity",
    "robot.type": "robot",
    "step": "checkpoint",
    "successes_needed": "demos",
    "teleop.type": "device",
    "total_timesteps": "steps",
    "training_starts": "learner.starts_at",
    "utd": "agent.utd",
    "utd_ratio": "agent.utd",
}
"""Options of SERL, HIL-SERL, LeRobot and Stable-Baselines3, and short names, with serl's names."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `BadInput` in one line, and whose help fits 100 columns."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Formatter, allow_abbrev=False, **settings)
        self.register("type", Path, home_path)  # as in --out=~/FILE
        self.register("type", None, expand_home)  # as in --robot=~/FILE.yaml

    def error(self, message: str) -> NoReturn:
        """Raise `BadInput` with the name of the command, the fault and the allowed values."""
        name = self.prog.removeprefix("serl").strip()
        raise BadInput(f"{name}: {self._explained(message)}" if name else message)

    def _explained(self, message: str) -> str:
        """Return an error of argparse in the words of the other errors."""
        _, is_missing, missing = message.partition("arguments are required: ")
        if is_missing:
            return f"expected {missing}{self._meaning(missing)}; see `{self.prog} --help`"
        option, colon, fault = message.removeprefix("argument ").partition(": ")
        if not (colon and message.startswith("argument ")):
            return message
        if fault in ("expected one argument", "expected at least one argument"):
            fault = "expected a value"
        elif found := _INVALID.fullmatch(fault):
            fault = f"expected {_KINDS.get(found[1], found[1])}, got {found[2]}"
        elif found := _CHOICE.fullmatch(fault):
            allowed = found[2].replace("'", "").split(", ")
            guess = did_you_mean(found[1].strip("'"), allowed)
            fault = f"expected one of {', '.join(allowed)}, got {found[1]}{guess}"
        return f"{option}: {fault}"

    def _meaning(self, missing: str) -> str:
        """Return the help of a missing positional argument; for a task, the names of all tasks."""
        if missing.startswith("TASK"):
            return f", {task_names()}"
        found = [a for a in self._actions if missing in (a.metavar, *a.option_strings)]
        return f" ({found[0].help})" if found and found[0].help else ""


class _Formatter(argparse.HelpFormatter):
    """Help text of at most 100 columns, with the default of each option that has one."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)
        self._width = min(self._width, WIDTH)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        hidden = action.default in (None, False, "", argparse.SUPPRESS)
        if hidden or isinstance(action.default, list) or not action.option_strings:
            return action.help
        return f"{action.help} (default: %(default)s)"


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return the type of an option that is a whole number within bounds, for `add_argument`."""
    return _number(int, low, high)


def number(low: float, high: float) -> Callable[[str], float]:
    """Return the type of an option that is a number within bounds, for `add_argument`."""
    return _number(float, low, high)


def _number(kind: Callable[[str], Any], low: float, high: float | None) -> Callable[[str], Any]:
    allowed = f"at least {low:g}" if high is None else f"from {low:g} to {high:g}"

    def read(text: str) -> Any:
        value = kind(text)
        if not low <= value <= (float("inf") if high is None else high):
            raise argparse.ArgumentTypeError(f"expected {allowed}, got {text}")
        return value

    read.__name__ = kind.__name__  # argparse names it in the error for text that is no number
    return read


def add_task(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the positional argument for a task."""
    more: dict[str, Any] = {} if nargs is None else {"nargs": nargs}
    text = "name of a task (`serl list`), or path of a .py or .yaml file with one"
    parser.add_argument("task", metavar="TASK", help=text, **more)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the positional argument for the folder of a run."""
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="folder of a run, such as runs/TASK/DATE_TIME"
    )


def add_namespace(parser: argparse.ArgumentParser) -> None:
    """Add the option for the namespace of a real arm."""
    parser.add_argument(
        "--namespace", default="/", help="namespace of the real arm's topics, such as /left"
    )


def check_namespace(options: argparse.Namespace) -> None:
    """Raise `BadInput` for a namespace that is malformed, or given without the real arm's name."""
    from serl.runs.graph_file import checked_namespace

    if checked_namespace(options.namespace) != "/" and options.robot is None:
        raise BadInput(f"--namespace {options.namespace}: expected --robot NAME as well")


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the option that selects a checkpoint."""
    parser.add_argument(
        "--checkpoint",
        type=integer(0),
        metavar="STEPS",
        help="the checkpoint after this number of steps (default: the best one)",
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option for a file of settings."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML file of settings; options override it"
    )


def add_model_out(parser: argparse.ArgumentParser, noun: str = "model") -> None:
    """Add the required option for the file of trained weights to write."""
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help=f"file of the {noun} to write, .safetensors",
    )


def check_model_out(path: Path) -> None:
    """Raise `BadInput` unless weights can be written to this file, a .safetensors."""
    if path.suffix != ".safetensors":
        raise BadInput(f"--out {path}: must end in .safetensors")
    check_destination(path)


def task_names() -> str:
    """Return the names of serl's tasks as the end of an error message."""
    from serl import plugins

    return f"one of {', '.join(plugins.names('task'))}, or a .py or .yaml file"


def refuse_unknown(
    words: Sequence[str], parser: argparse.ArgumentParser, settings: Callable[[], Sequence[str]]
) -> None:
    """Raise `BadInput` for the first option that a command does not have.

    Args:
        words: words after the command, without those of known settings.
        parser: parser of the command.
        settings: returns the dotted names of the settings that the command accepts.
    """
    known = parser._option_string_actions
    for word in words:
        name = word.partition("=")[0]
        if word == "--":
            return
        if not word.startswith("-") or name in known or parser._negative_number_matcher.match(word):
            continue
        command = parser.prog.removeprefix("serl").strip()
        subject = f"{command}: " if command else ""
        found = remedy(name, known, settings()) or f"; see `{parser.prog} --help`"
        raise BadInput(f"{subject}unknown option {name}{found}")


def remedy(typed: str, options: Iterable[str], settings: Sequence[str]) -> str:
    """Return the end of an error message for an unknown option, which suggests the right one.

    Args:
        typed: the unknown option, or a word without dashes.
        options: options of the command, such as "--seed".
        settings: dotted names of the settings that the command accepts.
    """
    bare = typed.lstrip("-").replace("-", "_").lower()
    own = {name.removeprefix("--") for name in options if name != "-h"}
    former = FORMER.get(bare, FORMER.get(bare.rpartition(".")[2], "")).split()
    if former == ["task"]:
        return f"; expected TASK, {task_names()}"
    for name in (*(own & {*former}), *former):
        if name in own or any(f"{each}.".startswith(f"{name}.") for each in settings):
            return f"; did you mean --{name}?"
    near = did_you_mean(bare, {*own, *(name.partition(".")[0] for name in settings)}, 0.85)
    last = bare.rpartition(".")[2]
    if not near and (same := [f"--{name}" for name in settings if name.rpartition(".")[2] == last]):
        return f"; did you mean {' or '.join(same[:3])}?"
    near = near or did_you_mean(bare, {*own, *settings}, 0.7)
    return near.replace("'", "--", 1).replace("'", "")


def stamped_folder(task: str, kind: str) -> Path:
    """Return the folder of new data of a kind, by default: runs/TASK/KIND_DATE_TIME."""
    return Path("runs") / task / f"{kind}_{datetime.now():%Y-%m-%d_%H-%M-%S}"


def quoted(path: Path) -> str:
    """Return a path as a word of a command that is printed for people."""
    return shlex.quote(str(path))


def arm_words(options: argparse.Namespace) -> str:
    """Return the options of another command for the same arm, each after a space; or nothing."""
    if options.robot is None:
        return ""
    at = "" if options.namespace == "/" else f" --namespace {options.namespace}"
    return f" --robot {shlex.quote(options.robot)}{at}"
