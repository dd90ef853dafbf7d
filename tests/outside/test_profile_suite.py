"""Profile suite on an external arm: profile, driver and control law outside the tree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("moving_arm")]  # not beside each other

HERE = Path(__file__).parent
SUITE = """
from serl.ros.testing import ProfileSuite

class TestMyArm(ProfileSuite):
    profile, driver = "my_arm.py", "my_driver.yaml"
"""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    for name in ("my_arm.py", "my_driver.yaml", "my_law.py"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "test_my_arm.py").write_text(SUITE)
    return tmp_path


def suite(folder: Path) -> tuple[int, str]:
    """Run the suite in a folder as a user would; return exit status and output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_arm.py"]
    # The tests of serl's own arms run all faults and motions; some are enough here.
    command += ["-k", "silent or not (driven_again or turns or hung)"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout


def test_profile_suite_passes_external_arm(outside: Path) -> None:
    code, output = suite(outside)
    assert code == 0, output
    found = re.search(r"(\d+) passed", output)
    assert found is not None
    assert int(found[1]) >= 10, output


def test_profile_suite_reports_each_mistake_of_wrong_profile(outside: Path) -> None:
    """Check that mistakes are reported before any process starts and waits for wrong topics."""
    file, mistakes = (
        outside / "my_arm.py",
        {
            '"tracker/goal"': '"tracker/target"',
            '"base_link"': '"tool"',
            '"time_constant_s"': '"gain"',
            'node="tracker"': 'node="tracker", stiffness_n_m=500.0',
        },
    )
    text = file.read_text()
    for right, wrong in mistakes.items():
        assert right in text
        text = text.replace(right, wrong)
    file.write_text(text)
    code, output = suite(outside)
    assert code == 1
    for line in (
        "target: tracker/target (geometry_msgs/msg/PoseStamped), expected tracker/goal",
        "base_frame: tool, expected base_link",
        "controller: the driver has no parameter gain (tracker.cpp:18-20)",
        "stiffness at the start: 500.0 N/m, the controller: None",
        "my_arm does not fit its driver: target: tracker/target",
    ):
        assert line in output, output
