from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.ros


@pytest.mark.parametrize("module", ["serl.ros.nodes.actor", "serl.ros.nodes.link"])
def test_a_process_beside_an_arm_imports_nothing_for_people(module: str) -> None:
    heavy = {"tensorboard", "matplotlib", "rich", "PIL", "google.protobuf"}
    program = f"import sys, {module}; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
