"""`serl eval` and `serl verify`: trials of a trained policy, and the integrity of a run."""

from __future__ import annotations

import argparse

from serl.cli.arguments import add_checkpoint, add_run, integer
from serl.errors import SerlError
from serl.log.episode_reader import episode_paths
from serl.report.display import Display
from serl.runs.folder import RunFolder


def verify_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl verify`."""
    add_run(parser)


def verify(options: argparse.Namespace) -> int:
    """Print a report on each part of a run; return exit code 1 if any part is damaged."""
    from serl.runs.verify import episode_folders, verify

    sound = True
    for part in RunFolder.open(options.run, data_only=True).parts().values():
        episodes = sum(len(episode_paths(folder)) for folder in episode_folders(part))
        with Display().counting(f"episodes of {part.path}", episodes) as advance:
            report = verify(part.path, advance)
        print(report)
        sound &= report.sound
    return 0 if sound else 1


def evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl eval`."""
    verify_options(parser)
    parser.add_argument(
        "--trials", type=integer(1, 100_000), default=50, metavar="N", help="number of trials"
    )
    add_checkpoint(parser)
    parser.add_argument(
        "--sampled",
        action="store_true",
        help="sample actions as in training, instead of the mode of the policy",
    )


def evaluate(options: argparse.Namespace) -> int:
    """Run trials of each part of a run, and film some; return exit code 1 if they ended early."""
    from serl.cli.main import print_error
    from serl.cli.training import evaluate

    display, trials, early = Display(), options.trials, False
    for stage, run in RunFolder.open(options.run).parts().items():
        evaluation, film = evaluate(run, trials, options.checkpoint, display, options.sampled)
        print(f"{stage}{': ' if stage else ''}{evaluation.summary()}", flush=True)
        early |= bool(evaluation.early_end)
        try:
            print(f"video: {film()}")
        except SerlError as error:  # the result is valid without it
            print_error(f"no video: {error}")
    return 1 if early else 0
