"""Subcommands of a command group, such as those of `serl reward`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

NOTHING_KEPT = "nothing was written"
Command = Callable[..., argparse.ArgumentParser]


def group(parser: argparse.ArgumentParser) -> Command:
    """Return a function that adds a subcommand to a group and returns the subcommand's parser."""
    words = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)

    def command(
        name: str,
        function: Callable[[argparse.Namespace], int],
        text: str,
        overridable: bool = False,
        kept: str = NOTHING_KEPT,
    ) -> argparse.ArgumentParser:
        sub = words.add_parser(name, help=text, description=text, allow_abbrev=False)
        sub.set_defaults(run_command=function, overridable=overridable, kept=kept)
        return sub

    return command
