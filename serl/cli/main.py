"""The command line.

Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted after a clean stop.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from serl.agents.config import ClassifierConfig, PretrainingConfig
from serl.cli import actor as actor_command
from serl.cli import camera as camera_command
from serl.cli import demos as demos_command
from serl.cli import doctor as doctor_command
from serl.cli import encoder as encoder_commands
from serl.cli import guard as guard_command
from serl.cli import list as list_command
from serl.cli import order as order_command
from serl.cli import plan, reward
from serl.cli import record as record_command
from serl.cli import replay as replay_command
from serl.cli import run as run_command
from serl.cli import setup as setup_command
from serl.cli import sim as sim_command
from serl.cli import teleop as teleop_commands
from serl.cli import train as train_command
from serl.cli import up as up_command
from serl.cli.subcommands import NOTHING_KEPT
from serl.errors import BadInput, SerlError
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.system.json_fields import short
from serl.version import __version__

_ALL_KEPT = "everything is stopped and saved"
_STOPPED = "everything is stopped"
_OF_PATHS = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES}  # invalid paths
_NODES = {"camera", "guard", "sim"}
_SETTINGS = {
    name
    for model in (TrainConfig, ClassifierConfig, PretrainingConfig)
    for name in model.model_fields
}

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; errors that the user can fix are printed as one line on standard error."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    parser = _parser()
    words = _joined(_own(sys.argv[1:] if arguments is None else arguments))
    dotted = [word for word in words if word.startswith("--") and "." in word.partition("=")[0]]
    options, rest = parser.parse_known_args([word for word in words if word not in dotted])
    rest += dotted  # argparse takes a setting with a space in its value for the task
    if options.command is None:
        parser.print_help(sys.stderr)
        return BAD_INPUT
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    try:
        if rest and not options.overridable:
            raise BadInput(f"serl {options.command}: unexpected argument {rest[0]!r}")
        options.overrides = rest
        return int(options.run_command(options))
    except BadInput as error:
        _complain(error)
        return BAD_INPUT
    except SerlError as error:
        _complain(error)
        return FAILED
    except BrokenPipeError:  # the reader of the output, such as `head`, closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as error:
        if error.errno not in _OF_PATHS:
            raise
        _complain(f"{short(str(error.filename))}: {error.strerror}")
        return BAD_INPUT
    except KeyboardInterrupt:
        _complain(f"interrupted; {options.kept}")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def _own(words: Sequence[str]) -> Sequence[str]:
    """Return the words before `--ros-args`; a command that is a node passes the rest to ROS 2."""
    of_node = words and words[0] in _NODES and "--ros-args" in words
    return words[: words.index("--ros-args")] if of_node else words


def _joined(words: Sequence[str]) -> list[str]:
    """Join each setting into one word (`--seed=3`), so that no value is taken for the task."""
    joined, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        setting = word.removeprefix("--").split(".")[0].replace("-", "_")
        alone = word.startswith("--") and "=" not in word and setting in _SETTINGS
        joined.append(f"{word}={rest.pop(0)}" if alone and rest else word)
    return joined


def _complain(what: object) -> None:
    Console(stderr=True, highlight=False).print(
        f"serl: {what}", style="red", markup=False, soft_wrap=True
    )


class Command(NamedTuple):
    """A command of `serl`.

    Attributes:
        name: name on the command line.
        text: help text.
        add_options: adds the options, or the subcommands of a group.
        run: executes the command and returns the exit code; None for a group.
        overridable: whether settings are accepted as options as well.
        kept: message after Ctrl-C about the results that remain.
    """

    name: str
    text: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int] | None = None
    overridable: bool = False
    kept: str = NOTHING_KEPT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="serl", description="Reinforcement learning on robots.")
    parser.add_argument("--version", action="version", version=f"serl {__version__}")
    words = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text, add_options, run, overridable, kept in _commands():
        more = "; settings: --name value, --agent.utd 8, as `serl list` shows"
        sub = words.add_parser(
            name, help=text, description=text + more * overridable, allow_abbrev=False
        )
        sub.set_defaults(run_command=run, overridable=overridable, kept=kept)
        add_options(sub)
    return parser


def _commands() -> tuple[Command, ...]:
    return (*_of_training(), *_of_arms(), *_of_looking())


def _of_training() -> tuple[Command, ...]:
    """Return the commands for training and its data."""
    c = Command
    return (
        c(
            "train",
            "train a task, in simulation or on an arm, to the end",
            train_command.add_train_options,
            train_command.train,
            True,
            _ALL_KEPT,
        ),
        c(
            "learner",
            "run a learner node, of a new run or an old one",
            train_command.add_learner_options,
            train_command.learner,
            True,
            _ALL_KEPT,
        ),
        c(
            "actor",
            "run an actor node and its link",
            actor_command.add_options,
            actor_command.actor,
            kept=_ALL_KEPT,
        ),
        c(
            "record",
            "record demonstrations of an expert or a person",
            record_command.add_options,
            record_command.record,
            True,
            "whole episodes until now are kept",
        ),
        c(
            "demos",
            "bring demonstrations from elsewhere, or take one back",
            demos_command.add_commands,
        ),
        c("eval", "run a trained policy unassisted", _evaluate_options, _evaluate),
        c(
            "up",
            "start the learner and robots that a file describes",
            up_command.add_options,
            up_command.bring_up,
            kept=_ALL_KEPT,
        ),
        c(
            "plan",
            "predict how long a training will take",
            plan.add_options,
            plan.plan,
            True,
        ),
    )


def _of_arms() -> tuple[Command, ...]:
    """Return the commands that operate real or simulated arms."""
    c = Command
    return (
        c(
            "run",
            "execute a trained policy, on an arm or in simulation",
            run_command.add_options,
            run_command.execute,
            kept=_ALL_KEPT,
        ),
        c(
            "sim",
            "be a simulated arm for ROS 2, in real time or in lock-step",
            sim_command.add_options,
            sim_command.simulate,
            True,
            _STOPPED,
        ),
        c(
            "guard",
            "guard an arm, whoever drives it",
            guard_command.add_options,
            guard_command.guard,
            kept=_STOPPED,
        ),
        c(
            "order",
            "end a stop or arm a guard, signed with its key",
            order_command.add_options,
            order_command.order,
        ),
        c(
            "setup",
            "the first day with an arm, step by step",
            setup_command.add_options,
            setup_command.setup,
            kept="the steps that were done are kept",
        ),
        c(
            "camera",
            "be a camera for ROS 2: USB, RealSense or a film",
            camera_command.add_options,
            camera_command.camera,
            kept=_STOPPED,
        ),
    )


def _of_looking() -> tuple[Command, ...]:
    """Return the commands to watch, label, check and measure."""
    c, teleop = Command, teleop_commands
    return (
        c("replay", "show recorded episodes", replay_command.add_options, replay_command.replay),
        c("encoder", "bring or make image encoders", encoder_commands.add_commands),
        c(
            "reward",
            "collect, label, train and audit models of success",
            reward.add_commands,
        ),
        c(
            "console",
            "a web page to watch, take over, label and stop",
            teleop.add_console,
            teleop.console,
            kept=_STOPPED,
        ),
        c(
            "teleop",
            "drive an actor with a device of this machine",
            teleop.add_teleop,
            teleop.teleop,
            True,
            _STOPPED,
        ),
        c("verify", "prove that a run lost nothing and is undamaged", _of_run, _verify),
        c("list", "list tasks, robots and settings", list_command.add_options, list_command.show),
        c(
            "doctor",
            "check this installation, a graph, or a robot",
            doctor_command.add_options,
            doctor_command.examine,
        ),
    )


def _of_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")


def _evaluate_options(parser: argparse.ArgumentParser) -> None:
    _of_run(parser)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--checkpoint", type=int, help="steps of a checkpoint; else the best")


def _evaluate(options: argparse.Namespace) -> int:
    from serl.cli.training import evaluate

    for stage, run in RunFolder.open(options.run).parts().items():
        evaluation, film = evaluate(run, options.trials, options.checkpoint)
        print(f"{stage}{': ' if stage else ''}{evaluation.summary()}", flush=True)
        try:
            print(f"video: {film()}")
        except SerlError as error:  # the result is valid without it
            _complain(f"no video: {error}")
    return DONE


def _verify(options: argparse.Namespace) -> int:
    from serl.runs.verify import verify

    sound = True
    for part in RunFolder.open(options.run, data_only=True).parts().values():
        report = verify(part.path)
        print(report)
        sound &= report.sound
    return DONE if sound else FAILED


if __name__ == "__main__":
    sys.exit(main())
