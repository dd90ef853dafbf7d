"""The command line.

Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted after a clean stop.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from serl.errors import BadInput, SerlError, did_you_mean
from serl.version import __version__

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

_NOTHING = "nothing was written"
_ALL_SAVED = "everything is stopped and saved"
_STOPPED = "everything is stopped"
_EPISODES = "whole episodes until now are kept"
_PATH_ERRORS = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES}
_NODES = {"camera", "guard", "sim"}
_EPILOG = 'completion in bash and zsh: eval "$(register-python-argcomplete serl)"'


class Command(NamedTuple):
    """A command of `serl`.

    Attributes:
        function: module in this folder, and the function in it that executes the command and
            returns the exit code; `<function>_options` adds the options to a parser.
        text: help text.
        kept: message after Ctrl-C about the results that remain.
        settings: which settings are options as well: those of a run, of some part of it, or of
            another model; see `serl.cli.settings`.
    """

    function: str
    text: str
    kept: str = _NOTHING
    settings: str = ""


_GROUPS = {
    "demos": "import demonstrations, or undo the newest one",
    "encoder": "import or pretrain image encoders",
    "reward": "collect, label, train and audit models of success",
}
COMMANDS = {
    "train": Command(
        "train:train", "train a task to the end, in simulation or on an arm", _ALL_SAVED, "run"
    ),
    "learner": Command(
        "train:learner", "run the learner node of a new or existing run", _ALL_SAVED, "run"
    ),
    "actor": Command("actor:actor", "run an actor node and its link", _ALL_SAVED),
    "record": Command(
        "record:record", "record demonstrations of an expert or a person", _EPISODES, "run"
    ),
    "demos import": Command(
        "demos:import_file", "convert a .pkl file of SERL or HIL-SERL", _EPISODES, "run"
    ),
    "demos undo": Command("demos:undo", "remove the newest demonstration of a recording"),
    "eval": Command(
        "evaluate:evaluate",
        "run unassisted trials of a trained policy",
        "a result printed above is complete, a film is not",
    ),
    "up": Command("up:bring_up", "start the learner and robots that a file describes", _ALL_SAVED),
    "plan": Command("plan:plan", "predict how long a training will take", settings="run"),
    "run": Command(
        "run:execute", "execute a trained policy, on an arm or in simulation", _ALL_SAVED
    ),
    "sim": Command("sim:simulate", "run a simulated arm as a ROS 2 node", _STOPPED, "run"),
    "guard": Command("guard:guard", "run the guard of an arm for any ROS 2 controller", _STOPPED),
    "order": Command("order:order", "end a stop or arm a guard, signed with its key"),
    "setup": Command("setup:setup", "commission an arm step by step", "completed steps are kept"),
    "camera": Command(
        "camera:camera", "publish a USB camera, a RealSense or a film to ROS 2", _STOPPED
    ),
    "replay": Command("replay:replay", "show recorded episodes"),
    "encoder import": Command(
        "encoder:import_file", "convert SERL's resnet10_params.pkl without executing any of it"
    ),
    "encoder pretrain": Command(
        "encoder:pretrain",
        "teach the small encoder true positions, on images of simulated tasks (privileged)",
        settings="pretraining",
    ),
    "reward collect": Command(
        "reward:collect", "record images of success and of other situations", _EPISODES, "run"
    ),
    "reward label": Command(
        "reward:label", "label recorded steps; the newest label of a step counts"
    ),
    "reward train": Command(
        "reward:train", "train a model of success on labelled images", settings="classifier"
    ),
    "reward audit": Command(
        "reward:audit_model",
        "count a model's errors in a run or a collection, and show the worst",
        settings="reward",
    ),
    "console": Command(
        "teleop:console", "serve a web page to watch, take over, label and stop", _STOPPED
    ),
    "teleop": Command(
        "teleop:teleop", "drive an actor with a device of this machine", _STOPPED, "teleop"
    ),
    "sweep": Command("sweep:sweep", "train a grid of settings over tasks and seeds", _ALL_SAVED),
    "bench": Command(
        "bench:bench", "train learners on a set of tasks, and print a table", _ALL_SAVED, "run"
    ),
    "compare": Command("compare:compare", "compare configurations over tasks and seeds"),
    "verify": Command("evaluate:verify", "check that a run is complete and undamaged"),
    "list": Command("list:show", "list tasks, robots, other plug-ins and settings"),
    "doctor": Command("doctor:examine", "check this installation, a ROS graph, or a robot"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; errors that the user can fix are printed as one line on standard error."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    kept = _NOTHING
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    try:
        options = parse(words)
        if options.command is None:
            return BAD_INPUT
        kept = COMMANDS[options.command].kept
        return int(_load(options.command)(options))
    except BadInput as error:
        print_error(error)
        return BAD_INPUT
    except SerlError as error:
        print_error(error)
        return FAILED
    except BrokenPipeError:  # the reader of the output, such as `head`, closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as error:
        if error.errno not in _PATH_ERRORS:
            raise
        print_error(f"{str(error.filename)[:80]!r}: {error.strerror}")
        return BAD_INPUT
    except KeyboardInterrupt:
        print_error(f"interrupted; {kept}")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line, and print the help on standard error if it is empty.

    Returns:
        The options of the command, and in addition `command`: its name, or None;
        `overrides`: words of settings; `error`: function that prints the usage with a message, and
        ends the process with exit code 2.

    Raises:
        BadInput: a command or an option is unknown.
        SystemExit: argparse printed the help, the version, or the usage after a mistake.
    """
    name = _command_in(words)
    parser, options_of = _parser(name)
    if name is None:
        if not words:
            parser.print_help(sys.stderr)
        return parser.parse_args(words, argparse.Namespace(command=None))
    count = len(name.split())
    own = list(words[count:])
    overrides: list[str] = []
    if name in _NODES and "--ros-args" in own:
        own = own[: own.index("--ros-args")]  # the rest is for ROS 2
    names = set(options_of._option_string_actions)
    if kind := COMMANDS[name].settings:
        from serl.cli import settings

        known = settings.names(kind)
        own, overrides = settings.split(own, known, names)
        names |= {f"--{setting}" for setting in known}
        if {"-h", "--help"} & {*own}:
            settings.add(options_of, kind, overrides)
    given = argparse.Namespace(command=name, overrides=overrides, error=options_of.error)
    options, rest = parser.parse_known_args([*name.split(), *own], given)
    if rest:
        typed = rest[0].partition("=")[0]
        raise BadInput(f"serl {name}: unexpected argument {typed!r}{did_you_mean(typed, names)}")
    return options


def print_error(text: object) -> None:
    """Print a line on standard error, red on a terminal."""
    from rich.console import Console

    Console(stderr=True, highlight=False).print(
        f"serl: {text}", style="red", markup=False, soft_wrap=True
    )


def _command_in(words: Sequence[str]) -> str | None:
    """Return the command that the words begin with; None if argparse has to print help."""
    typed = " ".join(words[: 2 if words and words[0] in _GROUPS else 1])
    if typed in COMMANDS:
        return typed
    if typed and typed not in _GROUPS and "-" not in typed[:1] and " -" not in typed:
        guess = did_you_mean(typed, COMMANDS)
        raise BadInput(f"unknown command {typed!r}, see `serl --help`{guess}")
    return None


def _parser(name: str | None) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Return the parser of all commands and that of the named one, the only one with options."""
    parser = argparse.ArgumentParser(
        prog="serl", description="Reinforcement learning on robots.", epilog=_EPILOG
    )
    parser.add_argument("--version", action="version", version=f"serl {__version__}")
    groups = {"": parser.add_subparsers(metavar="COMMAND")}
    options_of = parser
    for full, command in COMMANDS.items():
        group, _, last = full.rpartition(" ")
        if group not in groups:
            text = _GROUPS[group]
            inner = groups[""].add_parser(group, help=text, description=text)
            groups[group] = inner.add_subparsers(metavar="COMMAND", required=True)
        sub = groups[group].add_parser(
            last, help=command.text, description=command.text, allow_abbrev=False
        )
        if full == name:
            _load(name, "_options")(sub)
            options_of = sub
    return parser, options_of


def _load(name: str, suffix: str = "") -> Callable[..., Any]:
    """Return the function of a command; its module is imported only now."""
    module, _, function = COMMANDS[name].function.partition(":")
    found: Callable[..., Any] = getattr(
        importlib.import_module(f"serl.cli.{module}"), f"{function}{suffix}"
    )
    return found


def _complete() -> None:
    """Print completions for the shell, and exit; see the package argcomplete."""
    import argcomplete

    words = os.environ.get("COMP_LINE", "").split()[1:]
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else " ".join(words[:1])
    parser, options_of = _parser(name)
    if name in COMMANDS and (kind := COMMANDS[name].settings):
        from serl.cli import settings

        settings.add(options_of, kind, [])
    argcomplete.autocomplete(parser)


if __name__ == "__main__":
    sys.exit(main())
