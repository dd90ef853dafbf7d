from __future__ import annotations

import pytest

pytest.importorskip("rclpy", reason="faults need ROS 2")

from .catalogue import REGISTRY
from .table import PAGE, page

PROMISED = {*range(1, 38), 42, 43, 44, 45, 46, 47, 48, 49, 52, 54, 55, 56, 57, 58, 59, 60}


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.faults"


def test_every_fault_that_was_promised_is_in_the_registry() -> None:
    numbers = {fault.number for fault in REGISTRY}
    assert numbers >= PROMISED, PROMISED - numbers


def test_names_are_unique() -> None:
    names = [fault.name for fault in REGISTRY]
    assert len(set(names)) == len(names)
