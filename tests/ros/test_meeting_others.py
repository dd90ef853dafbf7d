"""Communication over 127.0.0.1 with other programs that use ROS 2's default transports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serl.ros.environment import meet_others, ros_status

pytestmark = pytest.mark.ros


def stock_environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FAST")}
    kept.pop("SERL_SHARED_MEMORY", None)
    return {**kept, "AMENT_PREFIX_PATH": sys.prefix} if ros_status().wheels else kept


@pytest.fixture
def stock() -> Iterator[subprocess.Popen[bytes]]:
    script = Path(__file__).parent / "support/stock_process.py"
    process = subprocess.Popen([sys.executable, str(script)], env=stock_environment())
    yield process
    process.kill()
    process.wait()


def test_program_with_default_transports_exchanges_messages_and_services(
    stock: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    script = Path(__file__).parent / "support/meeting_process.py"
    ours = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=stock_environment(),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert ours.stdout.splitlines() == ["echoed: True", "asked: here", "loopback: True"], (
        ours.stderr
    )
    assert stock.poll() is None


def test_meet_others_writes_nothing_while_only_shared_memory_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_others(tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv("SERL_SHARED_MEMORY")
    meet_others(tmp_path)
    assert list(tmp_path.iterdir())
