"""Chaos: processes are killed and links lost at random, and nothing may be lost or doubled.

SERL_SOAK_SEED=7 pytest -m slow tests/soak/test_chaos.py

The seed decides who is struck, in which order, and after how many records; how far everything had
come by then, the machine decides.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

pytest.importorskip("rclpy", reason="chaos needs ROS 2")

from ..faults.catalogue import REGISTRY
from ..faults.registry import Recipe
from ..faults.system import FEW, System, moves, running
from ..ros.namespaces import two_hosts

pytestmark = pytest.mark.ros

SEED = int(os.environ.get("SERL_SOAK_SEED", "1"))
PATIENCE_S = 120.0  # a link may be lost for 60 s


class Scale(NamedTuple):
    """How much of it there is.

    Attributes:
        kills: of processes.
        losses: of links.
        settled: share of the strikes after which the learner is given time to get some records;
            the others strike again as soon as a few steps were made.
        records: of all actors together, at least.
        rate_hz: of all actors together.
    """

    kills: int
    losses: int
    settled: float
    records: int
    rate_hz: float


SHORT = Scale(kills=50, losses=2, settled=0.2, records=3_000, rate_hz=120.0)
LONG = Scale(kills=200, losses=20, settled=0.6, records=105_000, rate_hz=240.0)  # 1 in 50: an end
APART = Scale(kills=50, losses=10, settled=0.6, records=20_000, rate_hz=120.0)


def test_nothing_is_lost_in_a_little_chaos(tmp_path: Path) -> None:
    with running(tmp_path, actors=2, rate_hz=SHORT.rate_hz / 2) as system:
        chaos(system, SHORT)


@pytest.mark.slow
def test_nothing_is_lost_in_chaos(tmp_path: Path) -> None:
    with running(tmp_path, actors=3, rate_hz=LONG.rate_hz / 3) as system:
        chaos(system, LONG)


@pytest.mark.slow
def test_nothing_is_lost_in_chaos_between_two_hosts(tmp_path: Path) -> None:
    if why := Recipe.NAMESPACES.missing:
        pytest.skip(f"NOT TESTED on this machine: chaos between two hosts: {why}")
    with (
        two_hosts() as hosts,
        running(tmp_path, actors=2, rate_hz=APART.rate_hz / 2, hosts=hosts) as system,
    ):
        chaos(system, APART)


def chaos(system: System, scale: Scale) -> None:
    """Strike until all strikes are dealt, then let all records that are still due be made."""
    rng, begin_s = Random(SEED), time.monotonic()
    kills = [name for name in REGISTRY.strikes if name.startswith("kill")]
    order = [kills[number % len(kills)] for number in range(scale.kills)]
    order += ["lose_link"] * scale.losses
    rng.shuffle(order)
    dealt = Counter[str]()
    system.until(moves(system.accepted, FEW))
    for name in order:
        told = REGISTRY.strikes[name](system, rng)
        dealt[name] += 1
        say(f"{time.monotonic() - begin_s:.0f} s: {told}; {system.tell()}")
        wait_for = system.accepted if rng.random() < scale.settled else system.total
        system.until(moves(wait_for, rng.randint(1, 2 * FEW)), PATIENCE_S)
    system.until(lambda: system.total() >= scale.records, 10 * PATIENCE_S)
    system.finish(PATIENCE_S)
    say(f"seed {SEED}: {dict(dealt)}: {system.check()} in {time.monotonic() - begin_s:.0f} s")
    assert (system.kills, system.losses) == (scale.kills, scale.losses)


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201
