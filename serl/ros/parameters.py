"""Self-describing parameters of a node: description, range and write access."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor


class DescribedParameter(NamedTuple):
    """A parameter with its description.

    Attributes:
        value: initial value; its type never changes.
        text: description in one line, with its unit.
        low: smallest allowed value; None without a range.
        high: largest allowed value; None without a range.
        read_only: only the command line of the process sets it.
    """

    value: Any
    text: str
    low: float | None = None
    high: float | None = None
    read_only: bool = True

    @property
    def descriptor(self) -> Any:
        """The parameter's descriptor for rclpy."""
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


def declare(handle: Any, parameters: Mapping[str, DescribedParameter]) -> None:
    """Declare parameters of an rclpy node; values on the command line win.

    A parameter that rclpy has declared itself, `use_sim_time`, keeps its value and gets the new
    description.

    Raises:
        rclpy.exceptions.ParameterException: a value on the command line has another type, or is
            out of range.
    """
    for name, parameter in parameters.items():
        if handle.has_parameter(name):
            descriptor = parameter.descriptor
            descriptor.type = handle.get_parameter(name).type_.value
            handle.set_descriptor(name, descriptor)
        else:
            handle.declare_parameter(name, parameter.value, parameter.descriptor)
