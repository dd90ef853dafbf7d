"""The shipped profiles of real arms keep their contract."""

from __future__ import annotations

import pytest

from serl.ros.testing import ProfileSuite

from ..support.upstream import file_of

pytestmark = pytest.mark.ros


class TestFranka(ProfileSuite):
    profile, driver = "franka", file_of("franka")


class TestUR5e(ProfileSuite):
    profile, driver = "ur5e", file_of("ur5e")


class TestUR5eServo(ProfileSuite):
    profile, driver = "ur5e_servo", file_of("ur5e_servo")


class TestXArm7(ProfileSuite):
    profile, driver = "xarm7", file_of("xarm7")


@pytest.mark.slow  # a minute; the controller is the xArm's
class TestKinovaGen3(ProfileSuite):
    profile, driver = "kinova_gen3", file_of("kinova_gen3")
