import io
import math
import re
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from serl.cli.training import demonstrate
from serl.errors import BadInput
from serl.log.episode_reader import count_records, episode_paths
from serl.log.metrics import EpisodeRow, EvaluationRow, EventRow, MetricsWriter, UpdateRow
from serl.report.curves import quarters, running_mean, running_ratio, thin
from serl.report.display import Display
from serl.report.plots import Trace, plot
from serl.report.report import evaluations, write_report
from serl.report.run_data import read_run
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.system.video import Caption, draw_caption, write_video
from serl.training.evaluation import wilson
from serl.types import ActionSource

CONFIG = "task:\n  name: pick_cube\nagent:\n  utd: 4\nnote: <script>alert(1)</script>\n"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make_run(folder: Path, episodes: int = 300) -> Path:
    """Write the metrics and configuration of a plausible run."""
    rng = np.random.default_rng(0)
    clock, steps = Clock(), 0
    with MetricsWriter(folder, clock) as writer:
        writer.write(0, EventRow("started with 20 demonstrations & a <b>human</b>"))
        for episode in range(episodes):
            done = episode / episodes
            skill = 1 / (1 + math.exp(-12 * (done - 0.4)))
            assisted = rng.random() < 0.9 * math.exp(-3.5 * done)
            success = rng.random() < (0.85 if assisted else 0.97 * skill)
            length = int(rng.normal(38, 5)) if success else 100
            human = int(min(length, 60) * rng.uniform(0.2, 0.9)) if assisted else 0
            steps, clock.now_s = steps + length, clock.now_s + length / 48
            row = EpisodeRow(
                "actor-0", episode, length, bool(success), bool(assisted), float(success), human,
                int(assisted) * int(rng.integers(1, 3)), "success" if success else "time limit",
                length / 10, int(rng.poisson(0.6)),
            )  # fmt: skip
            writer.write(steps, row)
            noise = 1 + 0.1 * rng.normal()
            update = UpdateRow(
                steps, 47 * noise, 4 - 4 * math.exp(-steps / 300), (0.22 - 0.2 * done) * noise,
                -skill * noise, skill * noise, 0.01 + 0.04 * math.exp(-3 * done), 2 - 3 * done,
                int(rng.poisson(3)),
            )  # fmt: skip
            writer.write(steps, update)
            if episode % 60 == 59:
                won = int(rng.binomial(20, min(1.0, 0.95 * skill)))
                writer.write(steps, EvaluationRow(steps, 20, won, 4.4 - done, "selection"))
            if episode == 120:
                writer.write(steps, EventRow("actor-0 ended with exit code -9, restarted"))
        writer.write(steps, EvaluationRow(steps, 50, 48, 3.9, "final"))
        writer.write(steps, EventRow("done"))
    (folder / "config.yaml").write_text(CONFIG)
    return folder


def make_video(path: Path) -> None:
    scene = np.full((240, 320, 3), (44, 52, 66), np.uint8)
    scene[160:] = (92, 99, 112)
    frames = []
    for step in range(30):
        frame = scene.copy()
        frame[140 - 3 * step : 160 - 3 * step, 140:160] = (214, 84, 60)
        frame[110 - 3 * step : 138 - 3 * step, 132:168] = (190, 196, 206)
        frames.append(draw_caption(frame, Caption(ActionSource.POLICY, step, 1, success=step > 24)))
    write_video(path, frames, 10.0)


class Reader(HTMLParser):
    """HTML parser that collects links, tags, identifiers and text, and checks nesting."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.identifiers: list[str] = []
        self.text = ""
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "poster", "action", "data", "srcset"):
                self.links.append(value or "")
            if name == "id":
                self.identifiers.append(value or "")
        if tag not in ("meta", "link", "br", "img"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> has no start tag"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] != "style":
            self.text += data

    def finish(self) -> None:
        self.close()
        assert self._open == []


def read(run: Path) -> Reader:
    reader = Reader()
    reader.feed(write_report(run).read_text())
    reader.finish()
    return reader


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "pick_cube" / "2026-11-21T09-12-33"
    make_run(folder)
    make_video(folder / "videos" / "final.mp4")
    make_video(folder / "videos" / "eval-old.webm")  # format of older runs
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> Reader:
    return read(run)


def test_report_headline_is_final_evaluation(page: Reader) -> None:
    low, high = wilson(48, 50)
    assert "pick_cube" in page.text
    assert "96%" in page.text
    assert f"{100 * low:.1f} to {100 * high:.1f} %" in page.text
    assert "48 of 50 unassisted trials succeeded" in page.text
    assert "3.9 s" in page.text


def test_report_requests_no_external_resources(run: Path, page: Reader) -> None:
    text = (run / "report.html").read_text()
    assert page.links
    assert all(link.startswith(("data:", "#")) for link in page.links)
    assert not re.search(r"url\((?!#)|@import|<script|<link|<iframe|javascript:", text)
    assert not re.search(r"(?:src|href|poster)\s*=\s*[\"']?\s*(?:https?:)?//", text)
    assert "default-src 'none'" in text


def test_report_identifiers_are_unique_and_resolve(run: Path, page: Reader) -> None:
    text = (run / "report.html").read_text()
    assert len(set(page.identifiers)) == len(page.identifiers)
    used = {link[1:] for link in page.links if link.startswith("#")}
    used |= set(re.findall(r"url\(#([^)]*)\)", text))
    assert used <= set(page.identifiers)


@pytest.mark.usefixtures("page")  # writes the report
def test_report_plots_use_page_colours_only(run: Path) -> None:
    svgs = re.findall(r"<svg.*?</svg>", (run / "report.html").read_text(), re.DOTALL)
    assert len(svgs) >= 14
    for svg in svgs:
        assert not re.search(r"#[0-9a-f]{6}\b|<style|font-family", svg)
        assert "var(--" in svg


@pytest.mark.usefixtures("page")  # writes the report
def test_report_legend_tells_dots_from_line(run: Path) -> None:
    text = (run / "report.html").read_text()
    marks = {"Success against steps": {"line", "points"}, "Return against steps": {"line", "dots"}}
    for title, expected in marks.items():
        card = text.partition(f"<h3>{title}</h3>")[2].partition("</svg>")[0]
        legend = re.findall(r'<span class="(\w+)" style="--c:([^"]*)">([^<]+)</span>', card)
        assert {mark for mark, _, _ in legend} == expected
        assert len({(mark, colour) for mark, colour, _ in legend}) == len(legend), "two look alike"
        assert len({label for _, _, label in legend}) == len(legend)
    bar = css(text, ".key span::before")
    dot, diamond = (bar | css(text, f".key span.{mark}::before") for mark in ("dots", "points"))
    assert px(bar["width"]) >= 2 * px(bar["height"]), "a line is drawn as a bar"
    assert dot["width"] == dot["height"], "a dot is drawn as a circle"
    assert dot["border-radius"] == "50%"
    assert px(dot["width"]) >= 6
    assert "rotate" in diamond["transform"]


def css(page: str, selector: str) -> dict[str, str]:
    """Return the declarations of a selector in the style sheet of a page."""
    rule = page.partition(f"\n{selector}{{")[2].partition("}")[0]
    return dict(each.split(":", 1) for each in re.sub(r"\s+", "", rule).split(";") if each)


def px(length: str) -> float:
    return float(length.removesuffix("px"))


def test_plot_dots_are_large_enough_to_be_seen() -> None:
    x = np.arange(3.0)
    svg = plot("Return", [Trace("", "policy", x, x, "dots"), Trace("", "policy", x, x)], "x")
    (marker,) = re.findall(r'<path id="[^"]*-m[^"]*" d="M 0 ([\d.]+)', svg)  # lower end of a circle
    assert 2 * float(marker) >= 4.0, "diameter in px at natural size"
    dots = re.findall(r'<use [^>]*style="fill: var\(--policy\); fill-opacity: ([\d.]+)"', svg)
    assert len(dots) == 3
    assert min(map(float, dots)) >= 0.4


def test_report_contains_every_section(page: Reader) -> None:
    for part in (
        *("Success against steps", "Success against time", "Return against steps"),
        *("Return against time", "Human steps", "Cycle time"),
        *("Updates per step", "Weight age", "Critic loss", "Actor loss", "Temperature", "Entropy"),
        *("By quarter of the steps", "Evaluations", "chosen", "Events", "exit code -9"),
        *("Configuration", "utd: 4"),
    ):
        assert part in page.text
    assert "Nothing recorded" not in page.text
    assert "video" in page.tags


def test_report_escapes_text_from_files(run: Path, page: Reader) -> None:
    assert "script" not in page.tags
    assert "alert(1)" in page.text
    assert "a <b>human</b>" in page.text
    assert "&lt;b&gt;human" in (run / "report.html").read_text()


def test_report_embeds_videos(run: Path, page: Reader) -> None:
    assert "some of the final trials" in page.text
    for kind, name in (("mp4", "final.mp4"), ("webm", "eval-old.webm")):
        (film,) = [link for link in page.links if link.startswith(f"data:video/{kind};base64,")]
        assert len(film) > (run / "videos" / name).stat().st_size
    assert sum(link.startswith("data:image/jpeg;base64,") for link in page.links) == 2


def test_report_of_run_that_never_started(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: reach\n")
    page = read(tmp_path)
    for part in (
        "reach",
        "The run has no final evaluation",
        "Nothing recorded yet.",
        "No checkpoint was evaluated.",
        "Nothing was noted.",
        "No video was recorded.",
    ):
        assert part in page.text
    assert "nan" not in page.text.lower()


def test_report_compares_cycle_time_with_demonstrations(tmp_path: Path) -> None:
    config = resolve({"task": "reach", "demos": 3})
    run = RunFolder.create(tmp_path, config, datetime.now())
    demonstrate(run, Display(Console(file=io.StringIO())))
    with MetricsWriter(run.path) as writer:
        writer.write(40, EvaluationRow(40, 50, 50, 0.5, "final"))
    text = read(run.path).text
    lengths = [count_records(path) - 1 for path in episode_paths(run.demonstrations)]
    shown_s = sum(lengths) / 30
    assert (
        f"at {100 * shown_s / 0.5:.0f} % of the speed of the demonstrations ({shown_s:.1f} s)"
        in text
    )


def test_report_of_run_that_stopped_early(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "pick_cube" / "x") as writer:
        writer.write(40, EpisodeRow("a", 0, 40, True, False, 1.0, 0, 0, "success", 4.0, 0))
    path = tmp_path / "pick_cube" / "x" / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind": "epis')
    (tmp_path / "pick_cube" / "x" / "videos").mkdir()
    (tmp_path / "pick_cube" / "x" / "videos" / '"><script>.mp4').write_bytes(b"\x1a\x45")
    page = read(tmp_path / "pick_cube" / "x")
    assert "script" not in page.tags
    assert "pick_cube" in page.text  # taken from the folder name
    assert "Of its last 1 unassisted training episodes, 1 succeeded." in page.text
    assert 'Not a whole video: videos/"><script>.mp4' in page.text
    assert "The run has no config.yaml." in page.text


def test_report_shows_last_checkpoint_next_to_chosen_one(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(9, EvaluationRow(9, 50, 31, None, "last"))
        writer.write(9, EvaluationRow(6, 50, 48, 4.0, "final"))
    (tmp_path / "config.yaml").write_text("task: reach\n")
    write_report(tmp_path)
    text = read(tmp_path).text
    assert "48 of 50 unassisted trials succeeded" in text
    assert "last checkpoint, which was not selected, succeeded in 31 of 50 trials" in text


def test_report_shows_trials_repeated_after_a_kill_once(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        for step, won in ((6, 20), (9, 30), (6, 20), (9, 29)):
            writer.write(9, EvaluationRow(step, 30, won, None, "selection"))
    (tmp_path / "config.yaml").write_text("task: reach\n")
    shown = read_run(tmp_path).selections
    assert [(row["checkpoint"], row["successes"]) for row in shown] == [(6, 20), (9, 29)]


def test_report_says_that_a_result_is_partial(tmp_path: Path) -> None:
    ended = "ended after 5 void trials (camera): 2 of 6 valid"
    with MetricsWriter(tmp_path) as writer:
        row = EvaluationRow(9, 2, 2, 4.0, "final", void="5 void (camera)", early_end=ended)
        writer.write(9, row)
    (tmp_path / "config.yaml").write_text("task: reach\n")
    assert f"This result is partial: the trials {ended}." in read(tmp_path).text


def test_report_says_why_no_final_trial_counts(tmp_path: Path) -> None:
    ended = "ended after 5 void trials (camera): 0 of 6 valid"
    with MetricsWriter(tmp_path) as writer:
        writer.write(9, EvaluationRow(9, 0, 0, None, "final", early_end=ended))
    (tmp_path / "config.yaml").write_text("task: reach\n")
    assert f"No final trial counts: the trials {ended}." in read(tmp_path).text


def test_report_ignores_rows_of_other_versions(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: [oh: {no\n")
    lines = (
        '{"kind": "episode", "time_s": 1, "steps": 5}',
        '{"kind": "episode", "time_s": 2, "steps": 9, "length": "<i>", "success": null}',
        '{"kind": "update", "time_s": 2, "steps": 9, "q": null}',
        '{"kind": "evaluation", "time_s": 3, "steps": 9, "purpose": "final", "trials": 0}',
        '{"kind": "evaluation", "time_s": 3, "steps": 9, "purpose": "final", "trials": 2, '
        '"successes": 3}',
        '{"kind": "event", "time_s": 3, "steps": 9}',
        '{"kind": "tomorrow", "time_s": 3, "steps": 9}',
    )
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert "The run has no final evaluation" in read(tmp_path).text


def test_report_refuses_foreign_folder_and_names_damaged_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a run folder"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()
    (tmp_path / "metrics.jsonl").write_text("nonsense\n")
    write_report(tmp_path)
    assert "metrics.jsonl" in (tmp_path / "report.html").read_text()


def test_running_mean_and_ratio_skip_missing_values() -> None:
    values = np.array([1.0, 0.0, math.nan, 1.0, 1.0])
    assert running_mean(values, 2).tolist() == pytest.approx([1.0, 0.5, 0.0, 1.0, 1.0])
    assert math.isnan(running_mean(np.array([math.nan, 1.0]), 2)[0])
    human, steps = np.array([10.0, 0.0, 5.0]), np.array([10.0, 90.0, 10.0])
    assert running_ratio(human, steps, 2).tolist() == pytest.approx([1.0, 0.1, 0.05])


def test_thin_keeps_mean_and_order() -> None:
    x = np.arange(1000.0)
    thin_x, thin_y = thin(x, 2 * x, 64)
    assert len(thin_x) == 64
    assert (np.diff(thin_x) > 0).all()
    assert thin_y == pytest.approx(2 * thin_x)
    assert thin(np.array([1.0, 2.0]), np.array([math.nan, 3.0]), 64)[0].tolist() == [2.0]


def test_quarters_split_steps_and_keep_all_episodes() -> None:
    rows = [
        {"steps": 10 * (index + 1), "length": 10, "human_steps": 10 - index, "assisted": index < 4,
         "success": index != 0, "interventions": 1}
        for index in range(8)
    ]  # fmt: skip
    rows.insert(0, {**rows[0], "steps": 0})  # before the first update
    parts = quarters(rows)
    assert [part.last_step for part in parts] == [20, 40, 60, 80]
    assert [part.human_share for part in parts] == pytest.approx([29 / 30, 0.75, 0.55, 0.35])
    assert [part.assisted for part in parts] == [(1, 3), (2, 2), (0, 0), (0, 0)]
    assert [part.unassisted for part in parts] == [(0, 0), (0, 0), (2, 2), (2, 2)]
    assert quarters([]) == []


def test_plot_shows_small_tick_labels_and_is_empty_without_points() -> None:
    x = np.array([0.0, 1.0])
    svg = plot("Loss <1>", [Trace("", "policy", x, 1e-3 * x)], "x")
    assert ">0.0005<" in svg
    assert 'aria-label="Loss &lt;1&gt;"' in svg
    assert 'id="2-pegs-' in plot("2 pegs", [Trace("", "policy", x, 1e-3 * x)], "x")
    assert plot("none", [Trace("", "policy", x, np.array([math.nan] * 2))], "x") == ""


def test_evaluation_is_placed_at_training_time_of_checkpoint(tmp_path: Path) -> None:
    clock = Clock()
    with MetricsWriter(tmp_path, clock) as writer:
        for steps, now_s in ((0, 0.0), (100, 60.0), (300, 120.0)):
            clock.now_s = now_s
            writer.write(steps, UpdateRow(steps, 1, 1, 1, 1, 1, 1, 1, 1))
        clock.now_s = 900.0
        for checkpoint in (100, 200):
            writer.write(300, EvaluationRow(checkpoint, 20, 10, 4.0, "selection"))
    (tmp_path / "config.yaml").write_text(CONFIG)
    assert evaluations(read_run(tmp_path)).x.tolist() == [100.0, 200.0]
    assert evaluations(read_run(tmp_path), by_time=True).x.tolist() == [1.0, 1.5]


def test_report_has_all_steps_of_run_that_ends_between_reports_of_learner(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(100, UpdateRow(100, 12.3, 3.9))
        writer.write(150, EvaluationRow(150, 5, 5, 1.0, "final"))
    text = write_report(tmp_path).read_text()
    assert "<span>environment steps</span><strong>150</strong>" in text
