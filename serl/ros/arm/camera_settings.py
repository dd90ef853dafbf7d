"""Settings of an arm's cameras, from their drivers: kept with a recording, and compared later."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from serl.errors import SerlError
from serl.ros.arm.camera import picture_topic
from serl.ros.arm.pair import RosPair
from serl.ros.arm.robot import RosArm
from serl.ros.node import RosNode
from serl.ros.services import Remote
from serl.runs.folder import RunFolder
from serl.runs.real_arm import CameraSettings, camera_differences, keep_camera_settings
from serl.workspace import CellCamera

logger = logging.getLogger(__name__)

_LIMIT_S = 2.0
_MOST_PARAMETERS = 64
_PICTURE_PARAMETERS = re.compile(r"exposure|gain|white_balance|roi|crop|(^|\.)(fixed|size)$")
"""Names of driver parameters that change pictures, of `serl camera` and of other drivers."""


def note_cameras(
    node: RosNode, arm: RosArm | RosPair, run: RunFolder, origins: Sequence[Path] = ()
) -> None:
    """Save the settings of the cameras in the run's folder, and warn of differences.

    They are compared with those of an earlier start of the run, and of its demonstrations.

    Args:
        node: the process's node.
        arm: the arm, or both arms of a pair, whose cameras publish.
        run: folder of the run or the recording.
        origins: further folders to compare with, if they have settings of cameras.
    """
    found: CameraSettings = {}
    for each in (arm,) if isinstance(arm, RosArm) else arm.arms:
        found |= camera_settings(node, each.remote, each.robot, each.cameras)
    if not found:
        return
    for folder in (run.path, *run.config.demo_paths, *origins):
        for line in camera_differences(found, folder):
            logger.warning("%s", line)
    keep_camera_settings(run.path, found)


def camera_settings(
    node: RosNode, remote: Remote, robot: str, cameras: Mapping[str, CellCamera | None]
) -> CameraSettings:
    """Return the settings of each camera: parameters of its driver, and the profile's crop.

    Those of a driver without parameter services, or of a topic with several publishers, are left
    out.

    Args:
        node: the process's node.
        remote: calls services.
        robot: namespace of the arm, for cameras that the profile does not list.
        cameras: entries of the arm's profile by name of the camera; None for one without.
    """
    found: CameraSettings = {}
    for name, entry in cameras.items():
        base, compressed = (name, False) if entry is None else (entry.topic, entry.compressed)
        topic = picture_topic(robot, base, compressed=compressed)
        found[name] = _of_driver(node, remote, node.absolute(topic.name))
        if entry is not None:
            found[name]["cut"] = ", ".join(f"{share:g}" for share in entry.crop)
    return found


def _of_driver(node: RosNode, remote: Remote, topic: str) -> dict[str, str]:
    """Return the parameters of pictures of the node that publishes a topic."""
    publishers = node.handle.get_publishers_info_by_topic(topic)
    names = {f"{each.node_namespace.rstrip('/')}/{each.node_name}" for each in publishers}
    if len(names) != 1:
        return {}
    (driver,) = names
    try:
        known = remote.list_parameters(driver, _LIMIT_S)
        chosen = [name for name in known if _PICTURE_PARAMETERS.search(name)][:_MOST_PARAMETERS]
        values = remote.get_parameters(driver, chosen, _LIMIT_S)
    except SerlError as error:
        logger.info("%s: the settings of its pictures are not known: %s", driver, error)
        return {}
    return {name: str(value) for name, value in sorted(values.items())}
