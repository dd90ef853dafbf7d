from __future__ import annotations

from collections.abc import Callable

import pytest

from serl.errors import SerlError
from serl.log.index import Cursors, Stream
from serl.loop import EpisodeKey
from serl.policy import RandomPolicy
from serl.specs import Spec
from serl.testing import FakeRobot, FakeTask, InProcess, episode
from serl.training.plain_link import ExactlyOnce
from serl.types import Record, place_after

TASK = FakeTask()
SPEC = Spec(
    task=TASK.name,
    observation=TASK.observation_spec,
    action=TASK.config.motion.action_spec,
    rate_hz=TASK.config.rate_hz,
)
STREAM = ("actor", 0)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def records() -> list[Record]:
    robot = FakeRobot()
    policy = RandomPolicy(robot.action_spec, seed=0)
    return [
        record
        for number in range(3)
        for record in episode(robot, TASK, policy, number, EpisodeKey("run", "actor", 0, number))
    ]


def learner(
    end: InProcess,
    cursors: Cursors | None = None,
    places: dict[Stream, tuple[int, int]] | None = None,
    admit: Callable[[str], str] = lambda actor: "",
    clock: Clock | None = None,
) -> ExactlyOnce:
    return ExactlyOnce(end, SPEC, "run", cursors or {}, places or {}, admit, clock or Clock())


def keys(received: object) -> list[object]:
    return [record.key for record in received]  # type: ignore[attr-defined]


def test_duplicate_records_are_dropped() -> None:
    end, sent = InProcess(), records()
    once = learner(end)
    end.send(sent[:10])
    assert keys(once.receive()) == keys(sent[:10])
    end.send(sent)
    assert keys(once.receive()) == keys(sent[10:])
    assert once.counts["duplicate"] == 10


@pytest.mark.parametrize("known", [True, False])
def test_new_learner_continues_after_last_received_record(known: bool) -> None:
    end, sent = InProcess(), records()
    places = {STREAM: place_after(sent[9])} if known else {}
    once = learner(end, {STREAM: 10}, places)
    end.send(sent)
    assert keys(once.receive()) == keys(sent[10:])


def test_records_after_a_gap_wait_for_missing_records() -> None:
    end, sent = InProcess(), records()
    once = learner(end)
    end.send(sent[5:9])
    assert not once.receive()
    end.send(sent)
    assert keys(once.receive()) == keys(sent)
    assert once.counts["gap"] == 4


def test_missing_records_give_one_line_error_after_timeout() -> None:
    end, sent, clock = InProcess(), records(), Clock()
    once = learner(end, clock=clock)
    end.send(sent[5:6])
    assert not once.receive()
    clock.now_s += 31.0
    end.send(sent[6:7])
    with pytest.raises(SerlError, match=r"actor: records are missing: expected \(0, 0\)"):
        once.receive()


def test_actor_of_other_host_or_run_is_refused() -> None:
    end, sent = InProcess(), records()
    end.send(sent[:1])
    with pytest.raises(SerlError, match="transport: it is not here"):
        learner(end, admit=lambda actor: "it is not here").receive()
    end.send(sent[:1])
    with pytest.raises(SerlError, match="a record of the run 'run', expected 'other'"):
        ExactlyOnce(end, SPEC, "other", {}, {}, lambda actor: "").receive()
