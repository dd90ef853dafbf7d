"""Services of an actor that make its arm's controller stiffer or softer while it runs."""

from __future__ import annotations

import logging
import threading
from functools import partial

from serl.errors import BadInput, SerlError
from serl.ros.arm.robot import RosArm
from serl.ros.arm.controller import switch_gains
from serl.ros.node import RosNode
from serl.ros.remote import Remote
from serl.ros.services import serve

logger = logging.getLogger(__name__)


class GainServices:
    """`~/gains/<mode>` for each mode of the arm's profile: answers at once; done in a second.

    A switch that fails stops the arm, as `RosArm.switch` does.

    Args:
        node: of the actor.
        arm: whose controller is meant.
    """

    def __init__(self, node: RosNode, arm: RosArm) -> None:
        self._arm = arm
        self._remote = Remote(node, lambda: None)  # the control loop beats meanwhile
        self._switching: threading.Thread | None = None
        own = node.handle.get_fully_qualified_name()
        for mode in arm.profile.controller.modes:
            serve(node, f"{own}/gains/{mode}", partial(self._begin, mode))

    def _begin(self, mode: str) -> str:
        """In the executor's thread, which has to be free for the answers of the controller."""
        if self._switching is not None and self._switching.is_alive():
            raise BadInput("not now: the gains are being switched")
        self._switching = threading.Thread(target=self._switch, args=(mode,), daemon=True)
        self._switching.start()
        return f"gains go to {mode} over half a second"

    def _switch(self, mode: str) -> None:
        arm = self._arm
        try:
            switch_gains(self._remote, arm.robot, arm.profile, mode)
            logger.info("%s: gains are those of %s", arm.robot, mode)
        except SerlError as error:
            logger.warning("%s: gains: %s", arm.robot, error)
            arm.stop(f"gains: {error}")
