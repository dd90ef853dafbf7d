"""`serl replay`: show episodes as a table, or one as a summary, step by step, or as a film."""

from __future__ import annotations

import argparse
from pathlib import Path

from serl.cli.arguments import integer
from serl.clock import WallClock
from serl.errors import BadInput
from serl.report.display import Display


def replay_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl replay`."""
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="folder of a run, or a folder of episodes"
    )
    parser.add_argument("--actor", metavar="NAME", help="show only episodes of this actor")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--last", type=integer(1), metavar="N", help="show only the last N episodes of each actor"
    )
    chosen.add_argument(
        "--episode", type=integer(0), metavar="N", help="show a summary of episode number N"
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--follow", action="store_true", help="show the episode step by step in real time"
    )
    shown.add_argument(
        "--video", type=Path, metavar="FILE", help="write the episode to a .mp4 or .webm file"
    )


def replay(options: argparse.Namespace) -> int:
    """Show recorded episodes; raises `BadInput` when they cannot be shown."""
    from serl.report import review

    display = Display()
    found = review.of_actor(review.recordings(options.run), options.actor)
    if options.episode is None:
        if options.follow or options.video:
            raise BadInput("--follow and --video show one episode: choose it with --episode N")
        with display.working("reading the episodes"):
            review.print_table(display.console, review.newest(found, options.last))
        return 0
    with display.working("reading the episode"):
        shown = review.replayed(review.pick(found, options.episode))
    if shown is None:
        raise BadInput(f"episode {options.episode}: no step was recorded yet")
    if options.video:
        from serl.report.film import write_film

        with display.working("drawing the film") as show:
            origin = write_film(shown, options.video, show)
        print(f"video: {options.video} ({origin})")
    elif options.follow:
        review.follow(display.console, shown, WallClock(shown.spec.rate_hz))
    else:
        review.print_summary(display.console, shown)
    return 0
