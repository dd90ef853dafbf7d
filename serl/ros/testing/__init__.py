"""Conformance tests of arm profiles: a fake driver, a real guard and an actor, over real DDS.

    class TestMyArm(ProfileSuite):
        profile = "my_arm.py"       # as for `--robot`
        driver = "my_driver.yaml"   # what the driver's sources say, see `Driver`

Read in this order: `driver` (what a driver has), `laws` (how its controller moves the arm; one of
your own is a subclass of `Law`), `fake_driver` (their process), `processes` and `bench` (the guard
and the actor beside it), `profile` (the tests). Needs rclpy and pytest.
"""

from serl.ros.testing.bench import ProfileBench
from serl.ros.testing.driver import Driver
from serl.ros.testing.laws import LAWS, PERIOD_S, Law, Tool, tool_of
from serl.ros.testing.profile import ProfileSuite

__all__ = [
    "LAWS",
    "PERIOD_S",
    "Driver",
    "Law",
    "ProfileBench",
    "ProfileSuite",
    "Tool",
    "tool_of",
]
