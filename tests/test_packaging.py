"""Packaging: the wheel, the sdist and other installations contain every source file."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

import serl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
INSTALL = ROOT / "docs/install.md"
OTHERS = ("pyproject.toml", "README.md", "LICENSE", "setup.py", "setup.cfg")
SHARED = {
    folder: [str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)]
    for folder, patterns in SETUPTOOLS["data-files"].items()
}
# Script by which colcon reads a package: it evaluates the output. Same exclusions as colcon.
COLCON_READS = """
from distutils.core import run_setup
found = run_setup("setup.py", script_args=("--dry-run",), stop_after="config")
kept = {
    key: value for key, value in found.__dict__.items()
    if not key.startswith("_") and not callable(value)
    and key not in ("cmdclass", "distclass", "ext_modules", "metadata")
    and key not in found.display_option_names
}
kept["metadata"] = {
    key: value for key, value in found.metadata.__dict__.items()
    if key not in ("license_files", "provides_extras")
}
print(repr(kept))
"""
COLCON = ("colcon-core", "colcon-ros", "colcon-python-setup-py", "setuptools==68.1.2")  # of Jazzy
LINKS = ("robots", "tasks", "sim")
FOLDERS = ("serl", *(f"serl/{name}" for name in LINKS))


def source_files() -> set[str]:
    """Return all files of the packages, relative to the root; `rglob` follows no links."""
    return {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def copy_of_sources(copy: Path) -> None:
    """Copy the contents of a clone, links included, without tests and documents."""
    for folder in ("serl", *LINKS):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=ignored)
    for file in (*OTHERS, *(name for names in SHARED.values() for name in names)):
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, copy / file)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an sdist, and from it a wheel, of a copy of the sources without a network."""
    copy = tmp_path_factory.mktemp("source")
    copy_of_sources(copy)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", copy], check=True, capture_output=True
    )
    return copy / "dist"


def test_wheel_contains_every_file(archives: Path) -> None:
    with zipfile.ZipFile(next(archives.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    shared = {
        f"serl-{serl.__version__}.data/data/{folder}/{Path(file).name}"
        for folder, files in SHARED.items()
        for file in files
    }
    assert {"push_block.py", "train.launch.py"} <= {Path(name).name for name in shared}
    shipped = [*(ROOT / "launch").glob("*.py"), *(ROOT / "docs/examples").glob("*.*")]
    assert len(shared) == 2 + len(shipped)
    assert source_files() | shared == {name for name in names if ".dist-info/" not in name}
    assert "serl/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_sdist_contains_every_file(archives: Path) -> None:
    with tarfile.open(next(archives.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert (
        source_files() | {*OTHERS, *(file for files in SHARED.values() for file in files)} <= names
    )


def test_entry_points_are_callable() -> None:
    for point in importlib.metadata.distribution("serl").entry_points:
        assert callable(point.load()), point


def test_changelog_has_section_of_version() -> None:
    assert f"## [{serl.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_top_folders_are_linked_as_packages_of_serl() -> None:
    links = [path for path in (ROOT / "serl").iterdir() if path.is_symlink()]
    assert {path.name: path.resolve() for path in links} == {name: ROOT / name for name in LINKS}


def test_script_next_to_clone_imports_editable_install(tmp_path: Path) -> None:
    clone = tmp_path / "work" / "serl"
    clone.mkdir(parents=True)
    copy_of_sources(clone)
    build = "import setuptools.build_meta as b, sys; print(b.build_editable(sys.argv[1]))"
    made = [sys.executable, "-c", build, str(tmp_path)]
    subprocess.run(made, cwd=clone, check=True, capture_output=True)
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    scheme = {"base": str(tmp_path / "venv"), "platbase": str(tmp_path / "venv")}
    site = Path(sysconfig.get_path("purelib", "venv", scheme))
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))
    script = clone.parent / "script.py"
    script.write_text(
        "import gymnasium\n"
        'gymnasium.make("serl.gymnasium_env:serl/PickCube-v0")\n'
        "import serl\nprint(serl.__file__)"
    )
    ended = subprocess.run([python, script], cwd=clone.parent, capture_output=True, text=True)
    assert ended.stdout.strip() == str(clone / "serl/__init__.py"), ended.stderr


def test_constraints_pin_every_dependency() -> None:
    pinned = {
        line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = {
        *PROJECT["project"]["dependencies"],
        *(name for extra in extras.values() for name in extra),
    }
    names = {requirement_name(text) for text in wanted}
    assert names <= pinned


def test_install_page_names_every_extra() -> None:
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    table = page.partition("\n| extra | for |\n")[2].partition("\n\n")[0]
    of_a_clone = {"dev", "bench", "docs", "audit"}
    named = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert named == PROJECT["project"]["optional-dependencies"].keys() - of_a_clone


def test_lowest_constraints_match_bounds_of_project() -> None:
    """Check that each pin of `make lowest` is the `>=` bound, padded with zeros."""
    pins = (line.split("==") for line in (ROOT / "constraints-lowest.txt").read_text().split("\n"))
    lowest = {pin[0]: pin[1] for pin in pins if len(pin) == 2}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *extras["console"], *extras["data"]]
    bounds = {requirement_name(text): re.split("[,;]", text.split(">=")[1])[0] for text in wanted}
    assert lowest.keys() == bounds.keys()
    for name, bound in bounds.items():
        assert re.fullmatch(rf"{re.escape(bound)}(\.0)*", lowest[name]), name


def requirement_name(text: str) -> str:
    for sign in "=<>!":
        text = text.partition(sign)[0]
    return text.lower().replace("_", "-")


def test_ros_package_manifest_has_version() -> None:
    manifest = ElementTree.parse(ROOT / "package.xml").getroot()
    assert (manifest.findtext("name"), manifest.findtext("version")) == ("serl", serl.__version__)


def test_colcon_reads_package_metadata(tmp_path: Path) -> None:
    copy_of_sources(tmp_path)
    command = [sys.executable, "-W", "ignore", "-c", "import setuptools\n" + COLCON_READS]
    read = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert read.returncode == 0, read.stderr
    found = ast.literal_eval(read.stdout.splitlines()[-1])
    assert found["metadata"]["name"] == "serl"
    assert found["metadata"]["version"] == serl.__version__
    assert set(found["packages"]) == set(SETUPTOOLS["packages"])
    options = found["command_options"]
    assert options["install"]["install_scripts"][1] == "$base/lib/serl"
    assert options["develop"]["script_dir"][1] == "$base/lib/serl"


@pytest.mark.slow  # installs colcon from the package index
@pytest.mark.parametrize("how", [[], ["--symlink-install"]])
def test_colcon_builds_workspace_with_clone(tmp_path: Path, how: list[str]) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", *COLCON], check=True)
    (tmp_path / "src/serl").mkdir(parents=True)
    copy_of_sources(tmp_path / "src/serl")
    path = f"{python.parent}:{os.environ['PATH']}"
    subprocess.run(
        [python.parent / "colcon", "build", *how],
        cwd=tmp_path, check=True, env={**os.environ, "PATH": path},
    )  # fmt: skip
    needed = sysconfig.get_path("purelib")
    ended = subprocess.run(
        ["bash", "-c", f". install/setup.sh && export PYTHONPATH=$PYTHONPATH:{needed}"
         " && $AMENT_PREFIX_PATH/lib/serl/serl list reach"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    shared = tmp_path / "install/serl/share"
    assert (shared / "ament_index/resource_index/packages/serl").exists()
    assert (shared / "serl/launch/train.launch.py").exists()


@pytest.mark.slow  # installs uv, and by it serl, from the package index
def test_uvx_command_of_install_page_trains_from_wheel(archives: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    pip = [str(tmp_path / "venv/bin/python"), "-m", "pip"]
    subprocess.run([*pip, "install", "-q", "uv"], check=True)
    listed = subprocess.run([*pip, "config", "list"], check=True, capture_output=True, text=True)
    indexes = dict(re.findall(r"^global\.([\w-]+)='(.*)'$", listed.stdout, re.MULTILINE))
    found = re.search(r"^uvx (.*) serl train pick_cube$", INSTALL.read_text(), re.MULTILINE)
    assert found is not None
    ended = subprocess.run(
        [tmp_path / "venv/bin/uvx", "--constraints", ROOT / "constraints.txt",
         *shlex.split(found[1]), "serl", "train", "pick_cube", "--steps", "200", "--demos", "3",
         "--trials", "2", "--selection_trials", "1", "--required_success_rate", "0"],
        cwd=archives.parent, capture_output=True, text=True,
        env={
            **os.environ,
            "UV_CACHE_DIR": str(tmp_path / "cache"),
            "UV_FIND_LINKS": indexes.get("find-links", ""),
            "UV_INDEX": indexes.get("extra-index-url", ""),
            "UV_INDEX_STRATEGY": "unsafe-best-match",  # as pip does
        },
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"unassisted success +\d+%", ended.stdout)
    assert list(archives.parent.glob("runs/pick_cube/*/report.html"))


def test_failed_tests_of_xdist_group_are_rerun(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        '@pytest.mark.xdist_group("a/test_it.py::TestIt")\n'
        '@pytest.mark.parametrize("where", ["me@home", "b"])\n'
        "def test_it(where): assert where == 'b'\n"
    )
    run = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path)]
    subprocess.run([*run, "-n", "1", "--dist", "loadgroup"], cwd=tmp_path, capture_output=True)
    failed = [sys.executable, str(ROOT / ".ci/failed.py")]
    (tmp_path / "failed.txt").write_bytes(subprocess.check_output(failed, cwd=tmp_path))
    again = subprocess.run([*run, "@failed.txt"], cwd=tmp_path, capture_output=True, text=True)
    assert "1 failed in" in again.stdout
