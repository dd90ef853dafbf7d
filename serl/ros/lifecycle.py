"""Nodes that ROS 2's lifecycle tools manage: what moves does so only while its node is active.

    ros2 lifecycle set /RUN/actor0 deactivate

A process comes up active, unless it was started with `--ros-args -p autostart:=false`: then it is
unconfigured, and whoever manages it configures and activates it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn

from serl.errors import SerlError
from serl.ros.parameters import Described

logger = logging.getLogger(__name__)

RCLError = rclpy_implementation.RCLError

AUTOSTART = "autostart"
AUTOSTARTS = Described(True, "the node activates itself; false: someone who manages it does")


class ManagedNode(LifecycleNode):  # type: ignore[misc]
    """An rclpy lifecycle node whose transitions call two functions, in the executor's thread.

    Attributes:
        activate: from now on it may move; a `SerlError` refuses the transition.
        deactivate: from now on it holds.
    """

    activate: Callable[[], None] = staticmethod(lambda: None)
    deactivate: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._service_change_state.callback = partial(
            _refuse_what_cannot_be, self._service_change_state.callback
        )

    def on_activate(self, state: Any) -> Any:
        """Called by rclpy."""
        return self._change(self.activate)

    def on_deactivate(self, state: Any) -> Any:
        """Called by rclpy."""
        return self._change(self.deactivate)

    def on_shutdown(self, state: Any) -> Any:
        """Called by rclpy; what is shut down holds as long as its process lives."""
        return self._change(self.deactivate)

    def manage(self, activate: Callable[[], None], deactivate: Callable[[], None]) -> None:
        """Begin: active at once, or inactive until somebody says so.

        Args:
            activate: see above.
            deactivate: called now unless it starts by itself.
        """
        self.activate, self.deactivate = activate, deactivate
        if self.get_parameter(AUTOSTART).value:
            self.trigger_configure()
            self.trigger_activate()
        else:
            deactivate()

    def _change(self, act: Callable[[], None]) -> Any:
        try:
            act()
        except SerlError as error:
            logger.warning("%s: %s", self.get_name(), error)
            return TransitionCallbackReturn.FAILURE
        return TransitionCallbackReturn.SUCCESS


def _refuse_what_cannot_be(change: Callable[[Any, Any], Any], request: Any, response: Any) -> Any:
    """The change, or a no: rclpy 7.1.6 lets an impossible one end the process."""
    try:
        return change(request, response)
    except RCLError as error:
        logger.warning("transition refused: %s", error)
        response.success = False
        return response
