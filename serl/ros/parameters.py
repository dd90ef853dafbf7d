"""Parameters of a node that say what they are: a description, a range, and who may set them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor


class Described(NamedTuple):
    """A parameter.

    Attributes:
        value: at first; its type never changes.
        text: one line on what it is, with its unit.
        low: smallest value that is allowed; None without a range.
        high: largest.
        read_only: only the command line of the process sets it.
    """

    value: Any
    text: str
    low: float | None = None
    high: float | None = None
    read_only: bool = True

    @property
    def descriptor(self) -> Any:
        """As rclpy takes it."""
        made = ParameterDescriptor(description=self.text, read_only=self.read_only)
        if self.low is None or self.high is None:
            return made
        if isinstance(self.value, int):
            bounds = IntegerRange(from_value=int(self.low), to_value=int(self.high))
            made.integer_range = [bounds]
        else:
            made.floating_point_range = [
                FloatingPointRange(from_value=self.low, to_value=self.high)
            ]
        return made


def declare(handle: Any, parameters: Mapping[str, Described]) -> None:
    """Declare parameters of an rclpy node; values on the command line win.

    One that rclpy has declared itself, `use_sim_time`, keeps its value, and is described anew.

    Raises:
        rclpy.exceptions.ParameterException: such a value is of another type, or out of range.
    """
    for name, parameter in parameters.items():
        if handle.has_parameter(name):
            descriptor = parameter.descriptor
            descriptor.type = handle.get_parameter(name).type_.value
            handle.set_descriptor(name, descriptor)
        else:
            handle.declare_parameter(name, parameter.value, parameter.descriptor)
