from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

AUDIT = runpy.run_path(str(Path(__file__).parents[1] / ".ci/audit.py"))

SOUND = {"name": "numpy", "version": "2.4.6", "vulns": []}
SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI"}
OURS = {"name": "serl", "skip_reason": "Dependency not found on PyPI"}
BAD = {
    "name": "pillow",
    "version": "9.0",
    "vulns": [
        {"id": "CVE-1", "fix_versions": ["9.1", "10.0"]},
        {"id": "CVE-2", "fix_versions": []},
    ],
}


@pytest.mark.parametrize(
    ("packages", "lines"),
    [
        ([SOUND, OURS], []),
        (
            [SOUND, BAD],
            ["pillow 9.0: CVE-1, fixed in 9.1, 10.0", "pillow 9.0: CVE-2, fixed in no version"],
        ),
        ([SOUND, SKIPPED], ["torch was not audited: Dependency not found on PyPI"]),
    ],
)
def test_audit_lists_vulnerable_and_unaudited_packages(
    packages: list[dict[str, Any]], lines: list[str]
) -> None:
    assert list(AUDIT["problems"]({"dependencies": packages})) == lines


@pytest.mark.parametrize("report", [None, {}, {"dependencies": [SKIPPED, OURS]}])
def test_audit_without_index_reports_that_nothing_was_audited(report: Any) -> None:
    (line,) = AUDIT["problems"](report)
    assert "NOTHING WAS AUDITED" in line


def test_audit_lists_libraries_bundled_in_wheels(tmp_path: Path) -> None:
    for name in ("libssl-60250281.so.1.1.1k", "libcrypto-bdaed0ea.so.1.1.1k", "libz.so.1"):
        (tmp_path / "ros_rcl.libs").mkdir(exist_ok=True)
        (tmp_path / "ros_rcl.libs" / name).touch()
    found = AUDIT["bundled"](tmp_path)
    assert found == {"ros_rcl": ["crypto 1.1.1k", "ssl 1.1.1k", "z 1"]}
