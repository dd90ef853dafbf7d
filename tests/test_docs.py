"""The documentation: its check, the reference of commands and settings, and code of the pages."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from serl import plugins
from serl.arm_profile import load_robot
from serl.cli import main as cli
from serl.cli.settings import describe
from serl.console.messages import COMMANDS
from serl.runs.config import TrainConfig, parse_overrides
from serl.runs.settings import run_settings
from serl.system.settings_file import leaves, read_yaml
from serl.testing import failures

ROOT = Path(__file__).parents[1]


def loaded(path: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    return loaded("docs/site/tables.py")


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Load the check of pages with its root set to an empty tree."""
    module = loaded(".ci/pages.py")
    (tmp_path / "docs/reference").mkdir(parents=True)
    (tmp_path / "serl/log").mkdir(parents=True)
    (tmp_path / "mkdocs.yml").write_text("nav:\n")
    for name, value in {"ROOT": tmp_path, "DOCS": tmp_path / "docs", "INCLUDED": {}}.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_pages_check_reports_broken_links(pages: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "docs/a.md"
    page.write_text("# A b\n[x](a.md#a-b) [y](a.md#c) [z](gone.md) `[code](no.md)`\n")
    assert list(pages.broken(page)) == [
        "docs/a.md: a.md#c: no such heading",
        "docs/a.md: gone.md: no such file",
    ]


def test_pages_check_reports_broken_links_to_and_in_generated_tables(
    pages: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "docs/site").mkdir()
    (tmp_path / "docs/site/tables.py").write_text(
        "TABLES = {'commands': lambda: '## serl train\\n\\n[a](a.md#a) [b](a.md#b)'}\n"
    )
    (tmp_path / "docs/made.md").write_text("<!-- generated: commands -->\n")
    page = tmp_path / "docs/a.md"
    page.write_text("# A\n[x](made.md#serl-train) [y](made.md#serl-trian)\n")
    found = [finding for each in ("a", "made") for finding in pages.broken(page.with_stem(each))]
    assert found == [
        "docs/a.md: made.md#serl-trian: no such heading",
        "docs/made.md: a.md#b: no such heading",
    ]


def test_pages_check_reports_page_outside_navigation(pages: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "docs/a.md").write_text("# A\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\nnav:\n  - B: b.md\n")
    assert list(pages.outside_navigation()) == [
        "mkdocs.yml: a.md is not in the navigation",
        "mkdocs.yml: b.md: no such page",
    ]


def test_pages_check_reports_undocumented_public_names(pages: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "serl/log/__init__.py").write_text(
        "def sealed(): ...\ndef _own(): ...\nasync def tail(): ...\n"
        "BARE = 1\nTOLD: int = 2\n'''Two.'''\n_OWN = 3\nLAST: int = 4\n"
    )
    (tmp_path / "serl/robot.py").write_text("class Robot:\n    def act(self): ...\n")
    (tmp_path / "docs/reference/a.md").write_text("::: serl.log\n")
    assert list(pages.undocumented()) == [
        "docs/reference: serl.robot has no entry",
        *(
            f"serl/log/__init__.py: {name}: no docstring"
            for name in ("sealed", "tail", "BARE", "LAST")
        ),
    ]


def test_reference_has_every_setting_of_run(tables: ModuleType) -> None:
    page = tables.run_settings()
    for setting in describe(TrainConfig()):
        assert f"<code>{setting.name}</code>" in page, setting.name


def test_reference_shows_bounds_unit_default_and_meaning_of_settings(tables: ModuleType) -> None:
    (row,) = re.findall(r"^\| <code>speed_m_s</code> .*$", tables.limits(), re.MULTILINE)
    assert row == "| <code>speed_m_s</code> | 0.15 | 0.25 | m/s | top speed of the setpoint. |"
    (row,) = re.findall(r"^\| <code>device_s</code> .*$", tables.TABLES["guard"](), re.MULTILINE)
    assert "| number &gt; 0 ≤ 0.11, s | <code>0.11</code> | silence of the operator's" in row


def test_reference_has_every_command_with_its_options(tables: ModuleType) -> None:
    sections = dict(re.findall(r"^## serl (.+)\n((?:(?!## ).*\n?)*)", tables.commands(), re.M))
    assert set(sections) == set(cli.COMMANDS)
    assert "<code>--trials</code>" in sections["eval"]
    assert "settings.md#settings-of-a-run" in sections["train"]


def test_reference_tables_have_no_empty_meaning(tables: ModuleType) -> None:
    texts = {name: made() for name, made in tables.TABLES.items() if name != "topics"}  # see below
    for name, text in texts.items():
        assert "| meaning |" in text, name
        lines = text.splitlines()
        assert [line for line in lines if re.search(r"\|\s*\|$", line)] == [], name


@pytest.mark.ros
def test_reference_has_topics_with_type_qos_and_meaning(tables: ModuleType) -> None:
    pytest.importorskip("rclpy")
    found = {row.name: row for row in tables.topic_rows()}
    assert {"transitions", "policy/weights", "heartbeat", "ACTOR/joy", "/diagnostics"} <= set(found)
    assert found["policy/weights"].kind == "std_msgs/UInt8MultiArray"
    assert found["policy/weights"].qos == "reliable, depth 1, transient local"
    assert [name for name, row in found.items() if not row.meaning] == []


def test_reference_has_every_command_of_the_console() -> None:
    page = (ROOT / "docs/reference/topics.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if not re.search(rf"`(ACTOR/)?{name}`", page)] == []


def test_glossary_has_at_least_40_terms() -> None:
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r'^\| <a id="([\w-]+)"></a>\*\*(.+?)\*\* \| (.+) \|$', text, re.MULTILINE)
    assert len({anchor for anchor, _, _ in rows}) == len(rows) >= 40
    assert len(rows) == text.count('<a id="')


def test_each_concept_has_one_diagram() -> None:
    text = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", section)
        assert len(pictures) == 1, section.partition("\n")[0]
        assert pictures[0].startswith("images/diagrams/"), pictures
    assert text.count("\n## ") >= 7


def test_committed_diagrams_equal_output_of_script(tmp_path: Path) -> None:
    loaded("docs/images/diagrams.py").main(tmp_path)
    committed = sorted((ROOT / "docs/images/diagrams").glob("*.svg"))
    assert {path.name for path in committed} == {path.name for path in tmp_path.iterdir()}
    for path in committed:
        assert path.read_text() == (tmp_path / path.name).read_text(), path.name


def test_guard_page_has_limits_of_code(tables: ModuleType) -> None:
    assert tables.limits() in (ROOT / "docs/guard.md").read_text()


def blocks(page: Path, language: str) -> list[tuple[str, str]]:
    """Return the code blocks of a page in a language, with their titles."""
    text = page.read_text(encoding="utf-8")
    fence = r'^```(\w*)(?: title="(.*?)")?\n(.*?)^```$'
    found = re.findall(fence, text, re.DOTALL | re.MULTILINE)
    return [(title, code) for name, title, code in found if name == language]


def commands() -> list[str]:
    """Return the `serl` commands of all pages, one line each, without other shell commands."""
    found = set[str]()
    for page in (ROOT / "docs").rglob("*.md"):
        code = "".join(code for kind in ("bash", "") for _, code in blocks(page, kind))
        lines = code.replace("\\\n", " ").splitlines()
        found |= {line.partition(" # ")[0].strip() for line in lines if line.startswith("serl ")}
    return sorted(line.partition(" | ")[0] for line in found if line != "serl")


@pytest.mark.parametrize("line", commands())
def test_every_command_of_pages_is_valid(line: str) -> None:
    options = cli.parse(shlex.split(line)[1:])
    known = {*(each.name for each in describe(TrainConfig())), "task_config", "stages"}
    of_run = cli.COMMANDS[options.command].settings == "run"
    for name, _ in leaves(parse_overrides(options.overrides) if of_run else {}):
        plugin = ".py" in line or "task_config" in name or name.startswith(("stages.", "init_from"))
        mapping = name.rpartition(".")[0]  # a setting whose entries have names of their own
        assert plugin or {name, mapping} & known or name == "demos", name


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the titled files of docs/extend.md and docs/tune.md to a folder."""
    folder = tmp_path_factory.mktemp("pages")
    for page in ("extend.md", "tune.md"):
        for language in ("python", "yaml"):
            for title, code in blocks(ROOT / "docs" / page, language):
                if title:
                    (folder / title).write_text(code)
    return folder


@pytest.mark.parametrize(
    ("kind", "file"), [("reward", "high.py"), ("agent", "eager.py"), ("device", "pedal.py")]
)
def test_plugins_of_pages_load(files: Path, kind: plugins.Kind, file: str) -> None:
    assert plugins.kinds_in(files / file) == [kind]
    assert plugins.load(kind, str(files / file)).__doc__


def test_arm_of_pages_is_valid_profile(files: Path) -> None:
    assert load_robot(str(files / "my_arm.py")).joints[0] == "axis_1"


@pytest.mark.parametrize("file", ["views.yaml", "my.yaml"])
def test_settings_files_of_pages_are_valid(files: Path, file: str) -> None:
    config = run_settings("pick_cube", read_yaml(files / file), {})
    assert config.task == "pick_cube"


def test_conformance_suite_of_pages_passes(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(files))
    names = runpy.run_path(str(files / "test_high.py"))
    assert failures(names["TestHigh"]()) == set()
