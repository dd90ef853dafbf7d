"""How fast this machine simulates, acts and learns, each measured for some seconds, alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count

from serl import plugins
from serl.agent import Agent
from serl.runs.assembly import frame_encoder, make_acting_agent, make_agent, make_replay
from serl.runs.task_setup import make_spec, make_task
from serl.clock import VirtualClock
from serl.runs.config import TrainConfig
from serl.runs.demonstrations import record_expert
from serl.training.evaluation import Purpose, start_seed
from serl.loop import EpisodeKey, run
from serl.cli.plan import Rates
from serl.training.stacking import FrameStack
from serl.types import Action, Observation, Record

_EXPERT_EPISODES = 2
_FIRST_UPDATES = 2  # which make plans and buffers
Now = Callable[[], float]


class _TimedPolicy:
    """An agent's actions, and how long they took together."""

    def __init__(self, agent: Agent, frames: int, now: Now) -> None:
        self.took_s, self.stack = 0.0, FrameStack(frames)
        self._agent, self._now = agent, now

    def __call__(self, observation: Observation) -> Action:
        begin_s = self._now()
        action = self._agent.act(self.stack(observation), explore=True)
        self.took_s += self._now() - begin_s
        return action


def measure(
    config: TrainConfig, seconds: float, now: Now = time.perf_counter
) -> tuple[Rates, bool]:
    """Rates of simulation, policy and learner, and whether the learner has a GPU.

    Args:
        config: of the run that is planned; it trains nothing and writes nothing.
        seconds: for each of them.
        now: monotonic seconds.
    """
    task = make_task(config)
    demonstrated: list[Record] = []
    tried: list[Record] = []
    acting = make_acting_agent(config, make_spec(task), 0)
    policy = _TimedPolicy(acting, config.agent.frames, now)
    steps, env_s = 0, 0.0
    with plugins.make_simulation(task) as robot:
        key = EpisodeKey("plan", "expert", 1, 0)
        record_expert(robot, task, demonstrated.append, _EXPERT_EPISODES, config.seed, key)
        clock, begin_s = VirtualClock(robot.advance, task.config.rate_hz), now()
        for episode in count():
            robot.reset(start_seed(Purpose.TRAINING, config.seed, "plan", episode))
            policy.stack.begin()
            numbered = EpisodeKey("plan", "actor", 1, episode)
            steps += run(robot, task, policy, clock, numbered, tried.append).steps
            env_s = now() - begin_s
            if env_s >= seconds:
                break
    agent = make_agent(config, make_spec(task), 0)
    rates = Rates(
        env_steps_per_s=steps / env_s,
        updates_per_s=_updates_per_s(config, agent, demonstrated, tried, seconds, now),
        act_s=policy.took_s / steps,
        expert_steps=len(demonstrated) / _EXPERT_EPISODES - 1,  # an episode's end is no step
    )
    return rates, str(getattr(agent, "device", "cpu")) != "cpu"


def _updates_per_s(
    config: TrainConfig,
    agent: Agent,
    demonstrated: Sequence[Record],
    tried: Sequence[Record],
    seconds: float,
    now: Now,
) -> float:
    """Outer updates, their batches drawn from a replay of what was just recorded."""
    replay = make_replay(config, make_spec(make_task(config)), None, frame_encoder(agent))
    for record in demonstrated:
        replay.add(record, prior=True)
    for record in tried:
        replay.add(record)
    agent.fit_normaliser(replay.states())
    rows, share = config.agent.utd * config.agent.batch_size, config.learner.prior_share
    for _ in range(_FIRST_UPDATES):
        agent.update(replay.sample(rows, share))
    updates, begin_s = 0, now()
    while (took_s := now() - begin_s) < seconds:
        agent.update(replay.sample(rows, share))
        updates += 1
    return updates / took_s
