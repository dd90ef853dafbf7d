"""Insert a square peg, 20 mm wide, into a hole that is wider by half a millimetre on each side."""

from __future__ import annotations

from serl.tasks.parts.insertion import Insertion, InsertionConfig
from serl.tasks.parts.peg_and_hole import PEG


class PegInsertionConfig(InsertionConfig):
    """Settings of peg insertion; the defaults of `InsertionConfig` are those of the peg."""


class PegInsertion(Insertion):
    """Insert a square peg into a hole with half a millimetre of room on each side.

    25 of the peg's 50 mm must be inside; the peg starts up to 3 cm aside and 6 cm above.
    """

    name = "peg_insertion"
    fit = PEG

    def __init__(self, config: PegInsertionConfig | None = None) -> None:
        super().__init__(config or PegInsertionConfig())


task = PegInsertion
