"""`serl export`: a trained policy as an ONNX file, or recorded data in other formats."""

from __future__ import annotations

import argparse
import importlib
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serl.cli.arguments import add_checkpoint
from serl.errors import BadInput, SerlError, counted
from serl.report.display import Display
from serl.system.files import check_destination, new_folder, write_atomic

DATA_FORMATS = ("lerobot", "minari", "robomimic", "rerun")
RESERVE_BYTES, EXPANSION = 32 << 20, 20
"""Free space that an export leaves: bytes, and a multiple of the largest file of an episode."""


def export_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl export`."""
    parser.add_argument(
        "source", type=Path, metavar="RUN", help="folder of a run, or of recorded episodes"
    )
    parser.add_argument(
        "--to",
        required=True,
        choices=("onnx", *DATA_FORMATS),
        help="onnx for the policy, the others for the episodes",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="folder to write; for onnx a file, which is RUN/policy.onnx by default",
    )
    parser.add_argument(
        "--successes", action="store_true", help="export only episodes that solved the task"
    )
    parser.add_argument(
        "--push-to-hub",
        metavar="OWNER/NAME",
        help="upload a LeRobotDataset to this repository of the Hugging Face Hub",
    )
    add_checkpoint(parser)


def export(options: argparse.Namespace) -> int:
    """Export the policy or the episodes of a run."""
    if options.push_to_hub and options.to != "lerobot":
        raise BadInput(f"export: --push-to-hub: expected --to lerobot, got {options.to}")
    if options.successes and options.to == "onnx":
        raise BadInput("export: --successes selects episodes; --to onnx exports the policy")
    if options.checkpoint is not None and options.to != "onnx":
        raise BadInput(f"export: --checkpoint selects a policy; --to {options.to} exports episodes")
    return _export_policy(options) if options.to == "onnx" else _export_episodes(options)


def _export_policy(options: argparse.Namespace) -> int:
    """Write the policy of a run as an ONNX file."""
    from serl.runs.deployment import load_agent

    try:
        from serl.agents.onnx_export import export_policy
    except ImportError as error:
        raise _missing(error) from error
    out = options.out or options.source / "policy.onnx"
    if options.out and out.exists():
        raise BadInput(f"{out}: exists; give another --out")
    with Display().working("exporting the policy"):
        loaded = load_agent(options.source, options.checkpoint)
        check_destination(out)
        data = export_policy(loaded.agent, loaded.spec, loaded.step)
    write_atomic(out, data)
    print(f"{out}: policy after {loaded.step:,} steps, {len(data) / 1024:.0f} KiB")
    return 0


def _export_episodes(options: argparse.Namespace) -> int:
    """Write the episodes of a run or a recording in a data format."""
    from serl.datasets.export import check_token, push, recorded

    out = options.out
    if out is None:
        raise BadInput(f"export: expected --out FOLDER with --to {options.to}")
    module = format_module(options.to)
    if options.push_to_hub:
        try:
            check_token()
        except ImportError as error:
            raise _missing(error) from error
    data = recorded(options.source, options.successes, for_viewing=options.to == "rerun")
    reserve_bytes = RESERVE_BYTES + EXPANSION * max(path.stat().st_size for path in data.paths)
    bar = Display().counting(f"episodes for {out}", len(data.paths))
    with writing(out, reserve_bytes) as (folder, check), bar as advance:
        count = module.write(data._replace(on_file=lambda: (advance(), check())), folder)
    print(f"{out}: {counted(count, 'episode')} of {data.spec.task} for {options.to}")
    if data.left_out:
        print(f"left out: {data.left_out}")
    if options.to == "minari":
        print(module.describe(out))
    if options.push_to_hub:
        with Display().working(f"uploading to {options.push_to_hub}"):
            address = push(out, options.push_to_hub, module.VERSION)
        print(f"uploaded: {address}")
    return 0


@contextmanager
def writing(out: Path, reserve_bytes: int = 0) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Yield a folder that becomes `out` at the end of the block, and a function to call often.

    The function raises `KeyboardInterrupt` after Ctrl-C or SIGTERM, as h5py loses exceptions that
    signals raise in it; and `SerlError` while the disk has less than `reserve_bytes`, as HDF5
    crashes on a full disk, and Rerun hangs. Other errors of the disk become `SerlError`.
    """
    interrupted: list[int] = []
    home = next(folder for folder in (out, *out.resolve().parents) if folder.exists())

    def check() -> None:
        if interrupted:
            raise KeyboardInterrupt
        if (free := shutil.disk_usage(home).free) < reserve_bytes:
            free_mb, needed_mb = free / 1e6, reserve_bytes / 1e6
            raise SerlError(f"{out}: {free_mb:.0f} MB of the disk are free, needs {needed_mb:.0f}")

    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    before = {each: signal.signal(each, lambda at, _: interrupted.append(at)) for each in numbers}
    try:
        with new_folder(out) as folder:
            check()
            yield folder, check
            check()
    except (OSError, RuntimeError) as error:  # RuntimeError of HDF5
        path = Path(str(getattr(error, "filename", None) or home))
        if not path.resolve().is_relative_to(home.resolve()):
            raise  # of another file
        problem = " ".join(str(error).split()) or type(error).__name__
        raise SerlError(f"{out}: cannot be written: {problem}") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def format_module(name: str) -> Any:
    """Return the module of a format; raise `BadInput` if a package that it needs is missing."""
    try:
        return importlib.import_module(f"serl.datasets.{name}_format")
    except ImportError as error:
        raise _missing(error) from error


def _missing(error: ImportError) -> BadInput:
    """Return the error for a package that is not installed, with the extra that has it."""
    extra = "rerun" if error.name == "rerun" else "export"
    return BadInput(f"{error.name} is not installed: pip install 'serl[{extra}]'")
