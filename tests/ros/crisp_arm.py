"""The fake of an FR3 under crisp_controllers: `fake_arm.py`, for who has the folder of a run.

python crisp_arm.py RUN_FOLDER ROBOT
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from serl.ros.node import namespace

if __name__ == "__main__":
    place = f"{namespace(Path(sys.argv[1]))}/{sys.argv[2]}"
    script = str(Path(__file__).with_name("fake_arm.py"))
    sys.argv = [script, "crisp_controllers", place]
    runpy.run_path(script, run_name="__main__")
