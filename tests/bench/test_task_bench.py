from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Picture

from serl import plugins
from serl.errors import BadInput, CorruptData
from serl.version import commit
from tests.bench import bench_tasks, task_bench, task_page
from tests.bench.task_bench import Cloned, TaskRecord, Training, Walk

ROOT = Path(__file__).parents[2]
TRAINED = Training(
    command="serl train reach", recorded_in="abc", seeds=(1, 2), steps=500, successes=99, trials=100
)
CLONED = Cloned(
    recorded_in="abc",
    seeds=(1,),
    demonstrations=20,
    updates=8000,
    successes=22,
    trials=50,
    cycle_s=2.3,
)


def test_each_stage_counts_as_a_task() -> None:
    tasks = task_bench.find_tasks(["bin_relocation", "reach"])
    assert [task.name for task in tasks] == [
        "bin_relocation_forward", "bin_relocation_backward", "reach",
    ]  # fmt: skip


def test_measure_returns_expert_record_and_picture_of_its_step() -> None:
    (task,) = task_bench.find_tasks(["reach"])
    record, picture = task_bench.measure(task, trials=3)
    assert (record.expert_successes, record.expert_trials) == (3, 3)
    assert 5 < record.expert_steps < 30
    assert record.steps_per_s > 50
    assert picture.shape == (360, 480, 3)
    assert picture.std() > 10
    with plugins.make_simulation(task) as robot:
        assert not np.array_equal(picture, task_bench.shoot(task, robot, step=1))


def test_row_marks_values_that_were_not_measured() -> None:
    assert task_page.row("reach", {}) == (
        "| reach | not measured | not measured | not measured | not measured | not measured |  |  "
        "| not measured |"
    )
    record = TaskRecord(
        expert_successes=9,
        expert_trials=10,
        expert_steps=12.34,
        steps_per_s=800,
        walk=Walk(steps=20_000),
        trainings=(TRAINED,),
        cloned=CLONED,
    )
    assert task_page.row("reach", {"reach": record}) == (
        "| reach | 9 of 10 (60% to 98%) | 12 | 800 | 20,000, no fault "
        "| 99 of 100 (95% to 100%), 2 seeds | 500 | not measured "
        "| 22 of 50 (31% to 58%), 1 seed |"
    )


def test_page_shows_and_stores_numbers_and_pictures(tmp_path: Path) -> None:
    records = {"reach": TaskRecord(trainings=(TRAINED,), cloned=CLONED)}
    summaries = {"reach": "Hold the tool.", "drawer": "Pull."}
    grey = np.full((24, 36, 3), 128, np.uint8)
    task_page.write_page(tmp_path, records, summaries, {"reach": grey})
    page = (tmp_path / "tasks.md").read_text()
    assert "![reach: a moment of its expert's first try](images/tasks/reach.webp)" in page
    assert "*Shown: a moment of its expert's first try.*" in page
    assert "drawer.webp" not in page
    assert "`serl train reach` (commit abc): 99 of 100 (95% to 100%), 2 seeds, 500 steps" in page
    assert (
        "Cloned alone (commit abc): 22 of 50 (31% to 58%), 1 seed, 8,000 gradient steps on "
        "20 demonstrations. A success takes 2.3 s.\n" in page
    )
    assert task_bench.load_records(tmp_path) == records
    with Picture.open(tmp_path / "images/tasks/reach.webp") as picture:
        assert picture.size == (36, 24)


def test_damaged_records_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text('{"reach": {"expert_trials": -1}}')
    with pytest.raises(CorruptData, match=r"tasks.json: reach.expert_trials: Input should be"):
        task_bench.load_records(tmp_path)
    (tmp_path / "tasks.json").write_text("{")
    with pytest.raises(CorruptData, match="Invalid JSON"):
        task_bench.load_records(tmp_path)


def test_page_needs_an_existing_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such folder"):
        task_page.write_page(tmp_path / "absent", {}, {}, {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--trials", "0"), "--trials: expected at least 1, got 0"),
        (("--docs", "absent"), "--docs absent: no such folder"),
        (("raech",), "unknown task 'raech': expected one of"),
        (("reach", "raech", "--random-steps", "9"), "unknown task 'raech': expected one of"),
        (("raech", "--runs", "."), "unknown task 'raech': expected one of"),
        (("--runs", "absent"), "--runs absent: expected a folder of runs, found none in it"),
        (("--random-steps", "0"), "--random-steps: expected at least 1, got 0"),
        (("--random-steps", "9", "--runs", "."), "measures nothing: no --random-steps"),
        (("--commit", "abc"), "--commit: says with which code --runs were made"),
    ],
)
def test_invalid_arguments_give_one_line_errors(
    words: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert bench_tasks.main(words) == bench_tasks.BAD_INPUT
    printed, errors = capfd.readouterr()
    assert message in errors
    assert errors.count("\n") == 1
    assert not printed, "nothing is measured before the error"


@pytest.mark.parametrize(
    ("called", "words"), [("wander", ["--random-steps", "9"]), ("measure", ["--trials", "1"])]
)
def test_command_keeps_records_written_by_a_concurrent_command(
    called: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = getattr(task_bench, called)

    def beside(*given: Any) -> Any:
        found = measure(*given)
        task_page.write_page(tmp_path, {"reach": TaskRecord(trainings=(TRAINED,))}, {}, {})
        return found

    monkeypatch.setattr(task_bench, called, beside)
    assert bench_tasks.main(["reach", *words, "--docs", str(tmp_path)]) == bench_tasks.DONE
    record = task_bench.load_records(tmp_path)["reach"]
    assert record.trainings == (TRAINED,)
    assert record.walk is not None or record.expert_trials == 1


def test_command_keeps_training_results_and_handwritten_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    known = TaskRecord(trainings=(TRAINED,), cloned=CLONED, reason="The latch needs 12 N.")
    task_page.write_page(tmp_path, {"reach": known}, {"reach": "x"}, {})
    words = ["reach", "--trials", "2", "--docs", str(tmp_path)]
    assert bench_tasks.main(words) == bench_tasks.DONE
    assert "| reach | 2 of 2" in capfd.readouterr().out
    record = task_bench.load_records(tmp_path)["reach"]
    assert (record.expert_trials, record.training, record.cloned) == (2, TRAINED, CLONED)
    assert record.reason == known.reason
    page = (tmp_path / "tasks.md").read_text()
    assert "Hold the tool within a centimetre" in page
    assert "| drawer | not measured" in page
    assert f"Why fewer than 95% succeed: {known.reason}" in page


def test_training_with_more_seeds_replaces_one_with_fewer() -> None:
    one, two = TRAINED.model_copy(update={"seeds": (1,)}), TRAINED
    harder = one.model_copy(update={"command": "serl train reach --observe pixels --seed 1"})
    record = TaskRecord().with_training(one).with_training(harder).with_training(two)
    assert record.trainings == (harder, two)
    again = record.with_training(one)
    assert again.trainings == (harder, two, one)
    assert again.training == two
    assert TaskRecord(trainings=(harder,)).training is None


def test_docs_task_page_matches_recorded_numbers() -> None:
    records = task_bench.load_records(ROOT / "docs")
    page = (ROOT / "docs/tasks.md").read_text()
    for task in task_bench.find_tasks(plugins.names("task")):
        assert task_page.row(task.name, records) in page, (
            "python tests/bench/bench_tasks.py --docs docs"
        )
        record = records.get(task.name, TaskRecord())
        if (training := record.training) and training.successes < 0.95 * training.trials:
            assert record.reason, f"{task.name}: why is it not learned? (reason in tasks.json)"
        for training in record.trainings:
            assert not training.curve or (ROOT / "docs/images/tasks" / training.curve).exists()
        film = ROOT / f"docs/images/tasks/{task.name}.webp"
        assert film.stat().st_size < 400_000, "the page loads the pictures of all tasks"
        with Picture.open(film) as picture:
            assert picture.size == (640, 480), film.name
            assert getattr(picture, "n_frames", 1) > 10, f"{film.name} is not a film"


def test_pictures_of_all_tasks_show_trained_policies() -> None:
    records = task_bench.load_records(ROOT / "docs").items()
    others = {name for name, record in records if not record.picture.startswith("the policy after")}
    assert others == set(), "python docs/images/make.py gallery TASK --runs FOLDER"


def test_command_records_faults_of_random_steps(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    task_page.write_page(tmp_path, {"reach": TaskRecord(trainings=(TRAINED,))}, {"reach": "x"}, {})
    words = ["reach", "--random-steps", "200", "--docs", str(tmp_path)]
    assert bench_tasks.main(words) == bench_tasks.DONE
    assert capfd.readouterr().out == "reach: 200, no fault\n"
    record = task_bench.load_records(tmp_path)["reach"]
    assert record.walk is not None
    assert (record.walk.steps, record.walk.faults, record.training) == (200, 0, TRAINED)
    assert record.walk.recorded_in == commit()
    assert "| 200, no fault |" in (tmp_path / "tasks.md").read_text()


def test_random_walk_of_older_format_has_no_commit(tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text('{"reach": {"walk": {"steps": 7}}}')
    records = task_bench.load_records(tmp_path)
    assert records["reach"].walk == Walk(steps=7)
    assert "Random steps (" not in task_page.page(records, {"reach": "x"}, {"reach": False})


BARS = {
    "reach": 100, "pick_cube": 98, "peg_insertion": 98, "connector_insertion": 95,
    "cable_routing": 90, "drawer": 95, "bin_relocation_forward": 95, "bin_relocation_backward": 95,
    "object_flip": 80, "handover": 85, "racing_car": 100,
}  # fmt: skip


def test_recorded_numbers_reach_their_targets() -> None:
    """Check expert targets over 100 starts and 95 % trained success on six tasks, one dynamic."""
    records = task_bench.load_records(ROOT / "docs")
    for name, bar in BARS.items():
        record = records[name]
        assert record.expert_trials >= 100, name
        assert 100 * record.expert_successes >= bar * record.expert_trials, name
    trained = {name: record.training for name, record in records.items() if record.training}
    good = [name for name, each in trained.items() if each.successes >= 0.95 * each.trials]
    assert len(good) >= 6, good
    assert {"object_flip", "handover", "timing_belt"} & set(good)


def test_recorded_random_walks_have_100_000_steps_and_no_fault() -> None:
    for name, record in task_bench.load_records(ROOT / "docs").items():
        assert record.walk is not None, name
        assert record.walk.steps >= 100_000, name
        assert record.walk.faults == 0, name
