"""The shipped profiles of real arms keep their contract."""

from __future__ import annotations

import pytest
from geometry_msgs.msg import Twist

from serl.ros.arm.topics import topic_of
from serl.ros.testing import ProfileBench, ProfileSuite
from serl.ros.testing.processes import ROBOT, eventually

from ..support.upstream import file_of

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("moving_arm")]  # not beside each other


class TestFranka(ProfileSuite):
    profile, driver = "franka", file_of("franka")


class OtherArmSuite(ProfileSuite):
    """The suite without faults that a guard reports alike for all arms that take poses.

    `TestFranka` has them, and `TestUR5eServo`, which takes velocities.
    """

    test_an_invalid_pose_is_named_and_the_arm_is_driven_again = None  # type: ignore[assignment]
    test_lost_commands_are_named_and_it_is_driven_again = None  # type: ignore[assignment]


class TestUR5e(OtherArmSuite):
    profile, driver = "ur5e", file_of("ur5e")


class TestUR5eServo(ProfileSuite):
    profile, driver = "ur5e_servo", file_of("ur5e_servo")

    @pytest.mark.parametrize(
        ("stop", "state"), [("disarm", "disarmed"), ("estop", "estop: the service")]
    )
    def test_stopped_arm_is_sent_zero_velocities(
        self, bench: ProfileBench, stop: str, state: str
    ) -> None:
        standing, sent = Twist(), list[Twist]()
        topic = topic_of(bench.profile.target, ROBOT, 200)
        bench.node.subscribe(topic, lambda message: sent.append(message.twist))
        bench.make_ready()
        start_m = bench.position()[1]
        sign = -1.0 if start_m > 0.0 else 1.0
        bench.drive(until=lambda: sign * (bench.position()[1] - start_m) > 0.02, y=sign)
        begin = len(sent)
        bench.call(stop)
        eventually(lambda: standing in sent[begin:], found=lambda: str(sent[-3:]))
        bench.until(state)
        if stop == "estop":
            count = len(sent)
            eventually(lambda: len(sent) > count + 50)
        assert all(twist == standing for twist in sent[-20 if stop == "estop" else -1 :])
        assert all(sign * twist.linear.y >= 0.0 for twist in sent[begin:]), "no retract"


class TestXArm7(OtherArmSuite):
    profile, driver = "xarm7", file_of("xarm7")


@pytest.mark.slow  # a minute; the controller is the xArm's
class TestKinovaGen3(OtherArmSuite):
    profile, driver = "kinova_gen3", file_of("kinova_gen3")
