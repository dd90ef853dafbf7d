from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from serl.ros.people import recorder
from serl.ros.people.recorder import at_the_arm
from serl.runs.config import resolve
from serl.runs.folder import RunFolder

from ...support.acting import FakeCameraArm, notice_frozen_camera

pytestmark = pytest.mark.ros


def test_who_records_at_an_arm_has_its_cameras_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "make_arm", lambda *arguments: FakeCameraArm())
    config = resolve({"task": "reach", "robot": "franka", "demos": 0, "intervention": "none"})
    run = RunFolder.create(tmp_path, config, datetime.now())
    with at_the_arm(run, [], {}, lambda: None) as station:
        assert notice_frozen_camera(station.observers)
