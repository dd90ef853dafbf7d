"""`make audit`: known vulnerabilities, what wheels bring along, and the bill of materials.

Exit codes: 0 nothing known against any package, 1 otherwise, also when it could not be found out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

OURS = "serl"
SBOM = Path("build/sbom.json")

_LIBRARY = re.compile(r"lib([A-Za-z0-9_+-]+?)(?:-[0-9a-f]{8})*\.so\.?([0-9][0-9a-z.]*)?")


def problems(report: Mapping[str, Any] | None) -> Iterator[str]:
    """What is known against packages, and which of them nothing can be known about.

    Args:
        report: JSON of pip-audit; None when it broke off.
    """
    packages = [found for found in (report or {}).get("dependencies", []) if found["name"] != OURS]
    audited = [found for found in packages if "vulns" in found]
    if not audited:
        yield "NOTHING WAS AUDITED: the vulnerabilities that pypi.org knows of cannot be asked for"
        return
    for package in packages:
        for vulnerability in package.get("vulns", []):
            fixed = ", ".join(vulnerability["fix_versions"]) or "no version"
            name = f"{package['name']} {package['version']}"
            yield f"{name}: {vulnerability['id']}, fixed in {fixed}"
        if reason := package.get("skip_reason"):
            yield f"{package['name']} was not audited: {reason}"


def bundled(folder: Path) -> dict[str, list[str]]:
    """Shared libraries inside wheels, which no index knows of: name and version, by wheel."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in folder.glob("*.libs/*.so*"):
        if match := _LIBRARY.fullmatch(path.name):
            found[path.parent.name.removesuffix(".libs")].add(
                " ".join(filter(None, match.groups()))
            )
    return {wheel: sorted(names) for wheel, names in sorted(found.items())}


def main() -> int:
    """Print all three; says in the last line how it went."""
    SBOM.parent.mkdir(exist_ok=True)
    _run("cyclonedx_py", "environment", "--of", "JSON", "-o", str(SBOM), sys.executable)
    print(f"bill of materials: {SBOM}")
    print("libraries inside wheels, invisible to pip-audit; compare with their own advisories:")
    for wheel, names in bundled(Path(sysconfig.get_path("platlib"))).items():
        print(f"  {wheel}: {', '.join(names)}")
    try:
        print(f"  Fast DDS: {version('ros-fastrtps')}, built without DDS-Security")
    except PackageNotFoundError:
        print("  Fast DDS: of the sourced ROS 2 installation; ask its package manager")
    text = _run("pip_audit", "--format", "json", "--progress-spinner", "off", check=False)
    try:
        report = json.loads(text)
    except ValueError:
        report = None
    found = list(problems(report))
    print("\n".join(found) or "no known vulnerability in any package")
    return 1 if found else 0


def _run(module: str, *arguments: str, check: bool = True) -> str:
    words: Sequence[str] = (sys.executable, "-m", module, *arguments)
    done = subprocess.run(words, capture_output=True, text=True)
    if check and done.returncode:
        sys.exit(f"{module}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
