"""Nodes managed by ROS 2's lifecycle tools: each works only while its node is active.

    ros2 lifecycle set /RUN/actor0 deactivate

A process starts active, unless it was started with `--ros-args -p autostart:=false`: then it is
unconfigured until a lifecycle manager configures and activates it. A run of several hosts has no
lifecycle manager, because services cannot be signed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn

from serl.errors import SerlError
from serl.ros.parameters import DescribedParameter

logger = logging.getLogger(__name__)

RCLError = rclpy_implementation.RCLError

AUTOSTART = "autostart"
AUTOSTARTS = DescribedParameter(True, "the node activates itself; false: a lifecycle manager does")
INACTIVE = "its node is not active"


def _nothing() -> None:
    """Do nothing: the default callback, for main loops that read the attributes."""


class ManagedNode(LifecycleNode):  # type: ignore[misc]
    """An rclpy lifecycle node, whose state the main loop reads, or learns by callbacks.

    Args:
        enable_communication_interface: offer the lifecycle services; otherwise only `manage`
            changes the state.
        options: further options of rclpy.

    Attributes:
        configured: the node is to be loaded.
        active: the node is to do its work.
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
                _refuse_impossible, self._service_change_state.callback
            )

    def destroy_node(self) -> None:
        """Destroy the node at once; rclpy 7.1.6 leaves it in the network until it is collected."""
        super().destroy_node()
        self._state_machine.destroy_when_not_in_use()

    def on_configure(self, state: Any) -> Any:
        """Mark the node as configured; called by rclpy."""
        self.configured = True
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: Any) -> Any:
        """Activate the node, unless the callback refuses; called by rclpy."""
        answer = self._change(self._activate)
        self.active = answer == TransitionCallbackReturn.SUCCESS
        return answer

    def on_deactivate(self, state: Any) -> Any:
        """Deactivate the node; called by rclpy."""
        self.active = False
        return self._change(self._deactivate)

    def on_cleanup(self, state: Any) -> Any:
        """Mark the node as unconfigured; called by rclpy."""
        self.configured = False
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: Any) -> Any:
        """Deactivate the node for the rest of its process's life; called by rclpy."""
        return self.on_deactivate(state)

    def manage(
        self,
        activate: Callable[[], None] = _nothing,
        deactivate: Callable[[], None] = _nothing,
        *,
        again: bool = False,
    ) -> None:
        """Start active, or unconfigured until a lifecycle manager changes the state.

        Args:
            activate: called before the node is active, in the executor's thread; a `SerlError`
                refuses the transition.
            deactivate: called after the node became inactive; at once, unless it starts active.
            again: the node was active before it joined the network anew.
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


def _refuse_impossible(change: Callable[[Any, Any], Any], request: Any, response: Any) -> Any:
    """Change the state, or refuse: in rclpy 7.1.6 an impossible change ends the process."""
    try:
        return change(request, response)
    except RCLError as error:
        logger.warning("transition refused: %s", error)
        response.success = False
        return response
