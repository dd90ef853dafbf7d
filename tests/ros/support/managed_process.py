"""A managed node of a run in its own network, which prints its activity and services.

python managed_process.py RUN_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from serl.ros.node import RosNode
from serl.ros.parameters import DescribedParameter


def main(run_folder: Path) -> None:
    parameters = {"actor": DescribedParameter("actor0", "whose log is shipped")}
    with RosNode("link", run_folder, parameters=parameters, managed=True) as node:
        node.handle.manage()
        place = node.absolute("")[:-1]
        services = node.handle.get_service_names_and_types_by_node("link", place)
        print(json.dumps({"active": node.handle.active, "services": services}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
