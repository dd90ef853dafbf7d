"""A runner of a run's programs without its key: messages are neither signed nor verified.

python stranger_process.py -m serl.ros.nodes.link --run RUN_FOLDER --actor actor0
python stranger_process.py learner_process.py RUN_FOLDER HELLO_FILE
"""

from __future__ import annotations

import runpy
import sys

from serl.ros import tags


def main() -> None:
    vars(tags).update(sign=lambda key, message: message, verify=lambda key, signed: signed)
    if sys.argv[1] == "-m":
        sys.argv = sys.argv[2:]
        runpy.run_module(sys.argv[0], run_name="__main__")
    else:
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
