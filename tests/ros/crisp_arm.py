"""The fake of an FR3 under crisp_controllers: `fake_arm.py`, for who has the folder of a run.

python crisp_arm.py RUN_FOLDER ROBOT
"""

from __future__ import annotations

import sys
from pathlib import Path

from fake_arm import main

from serl.ros.node import namespace

if __name__ == "__main__":
    main("crisp_controllers", f"{namespace(Path(sys.argv[1]))}/{sys.argv[2]}")
