"""Nodes that ROS 2's lifecycle tools manage: each does its work only while its node is active.

    ros2 lifecycle set /RUN/actor0 deactivate

A process comes up active, unless it was started with `--ros-args -p autostart:=false`: then it is
unconfigured, and whoever manages it configures and activates it. In a run of several hosts nobody
does, for services cannot be signed.
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
INACTIVE = "its node is not active"


def _nothing() -> None:
    """Whoever looks at the attributes need not be told."""


class ManagedNode(LifecycleNode):  # type: ignore[misc]
    """An rclpy lifecycle node: its process's main loop looks at what it is, or is told.

    Args:
        name: of the node.
        enable_communication_interface: it has services; else it is what `manage` makes of it.
        options: of rclpy.

    Attributes:
        configured: somebody wants it loaded.
        active: it does its work.
    """

    def __init__(
        self, name: str, *, enable_communication_interface: bool = True, **options: Any
    ) -> None:
        self.configured = self.active = False
        self._activate: Callable[[], None] = _nothing
        self._deactivate: Callable[[], None] = _nothing
        communicates = enable_communication_interface
        super().__init__(name, enable_communication_interface=communicates, **options)
        if communicates:
            self._service_change_state.callback = partial(
                _refuse_what_cannot_be, self._service_change_state.callback
            )

    def on_configure(self, state: Any) -> Any:
        """Called by rclpy."""
        self.configured = True
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: Any) -> Any:
        """Called by rclpy."""
        answer = self._change(self._activate)
        self.active = answer == TransitionCallbackReturn.SUCCESS
        return answer

    def on_deactivate(self, state: Any) -> Any:
        """Called by rclpy."""
        self.active = False
        return self._change(self._deactivate)

    def on_cleanup(self, state: Any) -> Any:
        """Called by rclpy."""
        self.configured = False
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: Any) -> Any:
        """Called by rclpy; what is shut down holds as long as its process lives."""
        return self.on_deactivate(state)

    def manage(
        self,
        activate: Callable[[], None] = _nothing,
        deactivate: Callable[[], None] = _nothing,
        *,
        again: bool = False,
    ) -> None:
        """Begin: active at once, or unconfigured until somebody says so.

        Args:
            activate: called before it is active, in the executor's thread; a `SerlError` refuses.
            deactivate: called once it is not; now, unless it starts by itself.
            again: it was active before it joined the network anew.
        """
        self._activate, self._deactivate = activate, deactivate
        if again or self.get_parameter(AUTOSTART).value:
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
