from __future__ import annotations

import pytest

from serl.camera import WHOLE
from serl.ros.setup.checks import (
    StepFailed,
    ask_direction,
    ask_yes_no,
    check_direction,
    check_rate,
    check_way,
    format_position,
    parse_crop,
    parse_place,
    rate_of,
)

HERE = (0.4, 0.1, 0.3)


class Scribe:
    """An asker that gives prepared answers in turn."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.said = list(answers), list[str]()

    def show(self, text: str) -> None:
        self.said.append(text)

    def ask(self, key: str, question: str) -> str:
        return self.answers.pop(0)

    def pressed(self, key: str) -> bool:
        return False


@pytest.mark.parametrize(("answer", "meaning"), [("y", True), ("No", False), ("YES", True)])
def test_yes_no_question_is_repeated_until_valid_answer(answer: str, meaning: bool) -> None:
    scribe = Scribe("", "maybe", answer)
    assert ask_yes_no(scribe, "key", "Well?") is meaning
    assert scribe.said == ["'': expected y or n", "'maybe': expected y or n"]


def test_direction_is_asked_until_word_or_letter_is_valid() -> None:
    scribe = Scribe("north", "Forward")
    assert ask_direction(scribe, "key", "Which?") == "forward"
    letters = Scribe("f", "b", "l", "r", "u", "d")
    seen = [ask_direction(letters, "key", "Which?") for _ in range(6)]
    assert seen == ["forward", "back", "left", "right", "up", "down"]
    assert scribe.said == ["'north': expected one of forward, back, left, right, up, down"]


@pytest.mark.parametrize(
    ("axis", "place", "line"),
    [
        ("x", (0.39, 0.1, 0.3), r"commanded along \+x, the tool went 1.0 cm along -x"),
        ("y", (0.4, 0.09, 0.3), "along -y"),
        ("z", (0.4, 0.11, 0.3), r"commanded along \+z, the tool went 1.0 cm along y"),
        ("x", (0.405, 0.1, 0.32), "2.0 cm along z"),
    ],
)
def test_check_way_rejects_motion_along_another_axis(
    axis: str, place: tuple[float, float, float], line: str
) -> None:
    with pytest.raises(StepFailed, match=line):
        check_way(axis, HERE, place)


@pytest.mark.parametrize(
    "place", [HERE, (0.42, 0.1, 0.3), (0.398, 0.1, 0.3), (0.42, 0.11, 0.3), (0.402, 0.102, 0.3)]
)
def test_check_way_tolerates_small_deviations(place: tuple[float, float, float]) -> None:
    check_way("x", HERE, place)


def test_check_direction_rejects_axis_in_wrong_direction() -> None:
    for axis, seen in (("x", "forward"), ("y", "left"), ("z", "up")):
        check_direction(axis, seen, "base")
    with pytest.raises(StepFailed, match="y: the tool went right, expected left: the frame 'base'"):
        check_direction("y", "right", "base")


def test_rate_is_measured_between_first_and_last_message() -> None:
    assert rate_of([1.0 + 0.01 * n for n in range(11)]) == pytest.approx(100.0)
    assert rate_of([]) == rate_of([1.0]) == rate_of([1.0, 1.0]) == 0.0
    check_rate("pose", 29.9)  # of a driver's nominal 30 Hz, as franka_ros2's joint states
    with pytest.raises(StepFailed, match=r"pose: 12\.0 Hz, expected at least 28 Hz"):
        check_rate("pose", 12.0)


def test_crop_is_parsed_from_four_shares() -> None:
    assert parse_crop("") == WHOLE
    assert parse_crop("0.25, 0,0.75,1") == (0.25, 0.0, 0.75, 1.0)
    for wrong in ("1,2", "a,b,c,d", "0.5,0,0.4,1", "0,0,2,1", "nan,0,1,1"):
        with pytest.raises(StepFailed, match="crop"):
            parse_crop(wrong)


def test_position_is_parsed_from_three_numbers_in_metres() -> None:
    assert parse_place("0.3, -0.2,0.05") == (0.3, -0.2, 0.05)
    assert format_position((0.3, -0.2, 0.0512)) == "0.300,-0.200,0.051 m"
    for wrong in ("0.3,0.2", "a,b,c", "0.3 0.2 0.1", "nan,0,1", "0,inf,0", "1,2,3,4", ""):
        with pytest.raises(StepFailed, match="place"):
            parse_place(wrong)
