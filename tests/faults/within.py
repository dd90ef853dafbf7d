"""Run a module as a process on another host of `tests.ros.support.namespaces`.

python -m tests.faults.within PID MODULE ARGUMENTS...
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    _, pid, module, *arguments = sys.argv
    enter = ["nsenter", f"--target={pid}", "--user", "--net", "--preserve-credentials"]
    os.execvp(enter[0], [*enter, sys.executable, "-m", module, *arguments])
