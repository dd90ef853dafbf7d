"""`serl export`: a trained policy as one file, or recorded data in the formats of others."""

from __future__ import annotations

import argparse
from pathlib import Path

from serl.cli.arguments import add_checkpoint
from serl.errors import BadInput
from serl.system.files import check_destination, write_atomic

DONE = 0


def export_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl export`."""
    parser.add_argument(
        "source", type=Path, metavar="RUN", help="folder of a run, or of recorded episodes"
    )
    parser.add_argument(
        "--to", required=True, choices=("onnx",), help="the policy as a file for ONNX Runtime"
    )
    parser.add_argument(
        "--out", type=Path, metavar="PATH", help="file to write, else RUN/policy.onnx"
    )
    add_checkpoint(parser)


def export(options: argparse.Namespace) -> int:
    """Export the policy or the data of a run."""
    return _export_policy(options)


def _export_policy(options: argparse.Namespace) -> int:
    """Write the policy of a run as an ONNX file."""
    from serl.runs.deployment import load_agent

    try:
        from serl.agents.onnx_export import export_policy
    except ImportError as error:
        raise _missing(error) from error
    out = options.out or options.source / "policy.onnx"
    loaded = load_agent(options.source, options.checkpoint)
    check_destination(out)
    data = export_policy(loaded.agent, loaded.spec, loaded.step)
    write_atomic(out, data)
    print(f"{out}: policy after {loaded.step:,} steps, {len(data) / 1024:.0f} KiB")
    return DONE


def _missing(error: ImportError) -> BadInput:
    """Return the error for a package that is not installed."""
    return BadInput(f"{error.name} is not installed: pip install 'serl[export]'")
