"""Actor process without a robot: logs random records and notes each one the log accepted.

python -m tests.faults.actor_process RUN_FOLDER NAME RATE_HZ
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count
from pathlib import Path

from serl.clock import WallClock
from serl.log.episode_log import EpisodeLog
from serl.log.recovery import recover
from serl.specs import Spec
from serl.system.supervisor import is_orphaned
from serl.training.link import announce

from .books import appended_book, enough_file, lines_of
from .records import ANY_DISK, STEPS, episode


def main(run: Path, name: str, rate_hz: float) -> None:
    spec = Spec.model_validate_json((run / "spec.json").read_text())
    book = appended_book(run, name)
    episodes, epoch = run / "episodes" / name, time.time_ns()
    recover(episodes)
    clock = WallClock(rate_hz) if rate_hz else None
    descriptor = os.open(book, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with EpisodeLog(episodes, spec, run.name, name, epoch, ANY_DISK) as log:
        announce(run / "link" / name, run.name, name, epoch, spec)
        if clock:
            clock.start()
        for number in count():
            for record in episode(number, STEPS, epoch, spec, run.name, name):
                if enough_file(run).exists() or is_orphaned():
                    return
                log.append(record)
                os.write(descriptor, lines_of([record.key]).encode())
                if clock:
                    clock.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
