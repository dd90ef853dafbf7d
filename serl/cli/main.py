"""The command line.

Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted after a clean stop.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import logging
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from serl.cli.arguments import WIDTH, Parser, refuse_unknown, remedy
from serl.errors import BadInput, SerlError, did_you_mean
from serl.system.files import check_utf8
from serl.version import __version__

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

_NOTHING = "nothing was written"
_ALL_SAVED = "everything is stopped and saved"
_STOPPED = "everything is stopped"
_EPISODES = "complete episodes are saved"
_PATH_ERRORS = {
    errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EROFS,
}  # fmt: skip
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
_ERROR_CHARACTERS = 4000
_NODES = {"camera", "guard", "sim"}
_MORE = "`serl --help` describes all commands, `serl COMMAND --help` describes one."
_COMPLETION = 'completion in bash and zsh: eval "$(register-python-argcomplete serl)"'


class Command(NamedTuple):
    """A command of `serl`.

    Attributes:
        function: module in this folder, and the function in it that executes the command and
            returns the exit code; `<function>_options` adds the options to a parser.
        kept: message after Ctrl-C about the results that remain.
        settings: model or group of the settings that are options as well; see `serl.cli.settings`.
    """

    function: str
    text: str
    kept: str = _NOTHING
    settings: str = ""


_GROUPS = {
    "demos": "import demonstrations, or remove the newest one",
    "encoder": "import or pretrain image encoders",
    "task": "teach a task at a real arm",
    "reward": "collect and label images, train and audit models of success and of progress",
}
_DAY = ("doctor", "record", "train", "replay", "eval", "run")
"""The most used commands, in the order of their use."""

_SECTIONS = {
    "a working day": _DAY,
    "an arm, its cameras and its operator": (
        "setup", "task", "guard", "order", "camera", "teleop", "console", "sim",
    ),
    "data and rewards": ("demos", "export", "reward", "encoder"),
    "more trainings": ("plan", "learner", "actor", "up", "sweep", "compare", "bench"),
    "information": ("list", "verify"),
}  # fmt: skip
_SYNONYMS = {
    "calibrate": "setup",
    "collect": "record",
    "demo": "record",
    "deploy": "run",
    "evaluate": "eval",
    "help": "--help",
    "play": "run",
    "resume": "train --resume RUN",
    "rollout": "run",
    "tasks": "list",
    "test": "eval",
    "version": "--version",
    "watch": "replay",
}
"""Names of commands in other programs, and the commands of serl for the same purpose."""
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
        "demos:import_file",
        "convert demonstrations of SERL, LeRobot, Minari or robomimic",
        settings="run",
    ),
    "demos undo": Command("demos:undo", "remove the newest demonstration of a recording"),
    "eval": Command(
        "evaluate:evaluate",
        "run unassisted trials of a trained policy",
        "printed results are complete, the film is not",
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
    "task new": Command("task:new", "teach a task without a simulation at an arm, by hand"),
    "camera": Command(
        "camera:camera", "publish a USB camera, a RealSense or a film to ROS 2", _STOPPED
    ),
    "replay": Command("replay:replay", "show recorded episodes"),
    "export": Command("export:export", "convert a policy or recorded data to a common format"),
    "encoder import": Command(
        "encoder:import_file", "convert SERL's resnet10_params.pkl without executing code in it"
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
    "reward progress": Command(
        "progress:train",
        "train a model of the time until success on demonstrations",
        settings="progress",
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
    _make_printable()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    kept = _NOTHING
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    try:
        for word in words:
            check_utf8(word, "words of a command")
        _check_folder()
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
        return DONE if kept == _NOTHING else FAILED
    except OSError as error:
        if error.errno not in _PATH_ERRORS | _DISK_ERRORS:
            raise
        where = f"{str(error.filename)[:80]!r}: " if error.filename else ""
        print_error(f"{where}{error.strerror}")
        return BAD_INPUT if error.errno in _PATH_ERRORS else FAILED
    except RuntimeError as error:
        if not str(error).startswith("Symlink loop"):  # of `Path.resolve` before Python 3.13
            raise
        print_error(f"{error}: expected a file or a folder, or a link to one")
        return BAD_INPUT
    except KeyboardInterrupt as error:
        print_error(f"interrupted; {error if error.args else kept}")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_folder() -> None:
    """Raise `BadInput` if the working folder was removed, as relative paths then lead nowhere."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise BadInput("the working folder was removed; change to another folder") from None


def _make_printable() -> None:
    """Let a closed standard output take any text, and one without UTF-8 most of it."""
    if sys.stdout is None:  # as with `>&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line, and print the commands on standard error if it is empty.

    Returns:
        The options of the command, and in addition `command`: its name, or None;
        `overrides`: words of settings; `error`: function that raises `BadInput` with a message
        after the name of the command.

    Raises:
        BadInput: a command, an option or a value is unknown or missing.
        SystemExit: the help or the version was printed.
    """
    name = _command_in(words)
    parser, options_of = _parser(name)
    if name is None:
        if not words:
            print(_overview(_DAY), file=sys.stderr)
        elif words[0] not in _GROUPS:
            refuse_unknown(words, parser, list)
        return parser.parse_args(words, argparse.Namespace(command=None))
    count = len(name.split())
    own = list(words[count:])
    overrides: list[str] = []
    if name in _NODES and "--ros-args" in own:
        own = own[: own.index("--ros-args")]  # the rest is for ROS 2
    dotted: Callable[[], list[str]] = list
    if kind := COMMANDS[name].settings:
        from serl.cli import settings

        own, overrides = settings.split(
            own, settings.names(kind), set(options_of._option_string_actions)
        )
        dotted = partial(settings.dotted_names, kind, overrides)
        if {"-h", "--help"} & {*own}:
            settings.add(options_of, kind, overrides)
    refuse_unknown(own, options_of, dotted)
    given = argparse.Namespace(command=name, overrides=overrides, error=options_of.error)
    options, rest = parser.parse_known_args([*name.split(), *own], given)
    if rest:
        raise BadInput(f"{name}: {_unexpected(rest[0], own, options_of, dotted())}")
    return options


def _unexpected(
    word: str, own: Sequence[str], parser: argparse.ArgumentParser, settings: Sequence[str]
) -> str:
    """Return the error for a word that is no option and follows the last positional argument."""
    before = own[own.index(word) - 1] if word in own[1:] else ""
    flag = parser._option_string_actions.get(before)
    if flag is not None and flag.nargs == 0:
        return f"{before} takes no value, got {word!r}"
    guess = remedy(word.partition("=")[0], parser._option_string_actions, settings)
    return f"unexpected argument {word!r}{guess or f'; see `{parser.prog} --help`'}"


def print_error(text: object) -> None:
    """Print a text as one line on standard error, red on a terminal."""
    from rich.console import Console

    from serl.system.json_fields import printable

    line = printable(" ".join(str(text).split("\n")), _ERROR_CHARACTERS)
    Console(stderr=True, highlight=False, emoji=False).print(
        f"serl: {line}", style="red", markup=False, soft_wrap=True
    )


def _command_in(words: Sequence[str]) -> str | None:
    """Return the command that the words begin with; None if argparse has to print help."""
    typed = " ".join(words[: 2 if words and words[0] in _GROUPS else 1])
    if typed in COMMANDS:
        return typed
    if typed in _GROUPS:
        parts = [name.split()[1] for name in COMMANDS if name.startswith(f"{typed} ")]
        raise BadInput(f"{typed}: expected {', '.join(parts[:-1])} or {parts[-1]}")
    if typed and "-" not in typed[:1] and " -" not in typed:
        if synonym := _SYNONYMS.get(typed.lower()):
            raise BadInput(f"unknown command {typed!r}; did you mean `serl {synonym}`?")
        guess = did_you_mean(typed, COMMANDS) or "; `serl --help` lists all commands"
        raise BadInput(f"unknown command {typed!r}{guess}")
    return None


def _overview(commands: Sequence[str]) -> str:
    """Return some commands with their help, and the names of all others."""
    lines = ["usage: serl COMMAND [ARGUMENTS]", "", *_described(commands), ""]
    names = {name.partition(" ")[0]: None for name in COMMANDS}
    more = ", ".join(name for name in names if name not in commands)
    lines += textwrap.wrap(f"more: {more}", WIDTH, subsequent_indent="      ")
    return "\n".join([*lines, "", _MORE])


def _described(commands: Sequence[str]) -> list[str]:
    texts = {**_GROUPS, **{name: command.text for name, command in COMMANDS.items()}}
    return [f"  {name:9} {texts[name]}" for name in commands]


def _sections() -> str:
    """Return all commands with their help, by section."""
    lines = []
    for title, commands in _SECTIONS.items():
        lines += [f"{title}:", *_described(commands), ""]
    return "\n".join([*lines, _MORE, _COMPLETION])


def _parser(name: str | None) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Return the parser of all commands and that of the named one, the only one with options."""
    parser = Parser(prog="serl", usage="serl COMMAND [ARGUMENTS]")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _sections()
    parser.add_argument("--version", action="version", version=f"serl {__version__}")
    groups = {"": parser.add_subparsers(prog="serl", metavar="COMMAND", help=argparse.SUPPRESS)}
    options_of: argparse.ArgumentParser = parser
    for full, command in COMMANDS.items():
        group, _, last = full.rpartition(" ")
        if group not in groups:
            text = _GROUPS[group]
            inner = groups[""].add_parser(group, description=text)
            groups[group] = inner.add_subparsers(metavar="COMMAND", required=True)
        sub = groups[group].add_parser(last, help=command.text, description=command.text)
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
