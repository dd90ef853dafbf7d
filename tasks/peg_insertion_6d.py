"""Insert a square peg, held in any of ten grasps, into a hole tilted by up to 15 degrees."""

from __future__ import annotations

from serl.tasks.parts.insertion_6d import Insertion6D, Insertion6DConfig
from serl.tasks.parts.peg_and_hole import PEG


class PegInsertion6DConfig(Insertion6DConfig):
    """Settings of the task; the defaults of `Insertion6DConfig` are those of the peg."""


class PegInsertion6D(Insertion6D):
    """Insert the peg of `peg_insertion` into a hole that is tilted about x and about y.

    Each tilt is up to 15 degrees. The peg is held in one of ten grasps, up to 3 mm and 10 degrees
    off, and starts up to 3 cm aside and 8 cm above. Actions are in the tool frame, with rotations
    about all axes.
    """

    name = "peg_insertion_6d"
    fit = PEG

    def __init__(self, config: PegInsertion6DConfig | None = None) -> None:
        super().__init__(config or PegInsertion6DConfig())


task = PegInsertion6D
