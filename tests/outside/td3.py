"""TD3 (Fujimoto et al. 2018) from state observations, with its own settings."""

from __future__ import annotations

import math

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from serl.agent import AgentConfig, State
from serl.agents.weights import copy_into, to_arrays
from serl.errors import SpecMismatch
from serl.specs import Spec
from serl.types import Action, Array, Batch, Observation


class TD3Config(AgentConfig):
    """Hyper-parameters of TD3.

    Attributes:
        width: width of the hidden layer of actor and critics.
        exploration: standard deviation of the exploration noise.
    """

    width: int = Field(32, ge=1, le=4096)
    exploration: float = Field(0.1, ge=0, le=1)


class TD3:
    """TD3 agent; see `serl.agent.Agent`."""

    Config = TD3Config

    def __init__(self, spec: Spec, config: TD3Config, seed: int) -> None:
        self.config = config
        state, action = spec.observation.state_size, math.prod(spec.action.shape)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.nets = nn.ModuleDict(
                {
                    name: _network(size, config.width, out)
                    for name, size, out in (
                        ("actor", state, action),
                        *((name, state + action, 1) for name in ("q1", "q2", "target1", "target2")),
                    )
                }
            )
        for online, target in (("q1", "target1"), ("q2", "target2")):
            self.nets[target].load_state_dict(self.nets[online].state_dict())
        self.rate = 1e-3
        self.mean, self.std = torch.zeros(state), torch.ones(state)
        self.generator = torch.Generator().manual_seed(seed)

    @classmethod
    def create(cls, spec: Spec, config: AgentConfig, seed: int) -> TD3:
        assert isinstance(config, TD3Config)
        return cls(spec, config, seed)

    def act(self, observation: Observation, explore: bool) -> Action:
        state = np.concatenate([np.ravel(each) for each in observation.state.values()])
        with torch.inference_mode():
            action = self._policy(torch.from_numpy(state.astype(np.float32)))
            if explore:
                noise = torch.randn(action.shape, generator=self.generator)
                action = (action + self.config.exploration * noise).clamp(-1.0, 1.0)
        return np.array(action.numpy(), np.float32)

    def fit_normaliser(self, states: Array) -> None:
        self.mean = torch.from_numpy(states.mean(0)).float()
        self.std = torch.from_numpy(states.std(0)).float().clamp_min(1e-3)

    def update(self, batch: Batch) -> dict[str, float]:
        if not np.isfinite(batch.state).all() or not np.isfinite(batch.reward).all():
            return {"skipped": 1.0}
        rows = self.config.batch_size
        if len(batch.state) != rows * self.config.utd:
            raise SpecMismatch(f"batch: {len(batch.state)} rows, expected {rows * self.config.utd}")
        loss = torch.zeros(())
        for start in range(0, len(batch.state), rows):
            loss = self._critic_step(batch, slice(start, start + rows))
        state = torch.from_numpy(batch.state[-rows:])
        self._descend("actor", -self._value("q1", state, self._policy(state)).mean())
        return {"skipped": 0.0, "critic_loss": loss.item()}

    def _critic_step(self, batch: Batch, part: slice) -> Tensor:
        state, action, reward, discount, following = (
            torch.from_numpy(np.asarray(each[part], np.float32))
            for each in (batch.state, batch.action, batch.reward, batch.discount, batch.next_state)
        )
        with torch.no_grad():
            chosen = self._policy(following)
            worth = torch.minimum(
                self._value("target1", following, chosen), self._value("target2", following, chosen)
            )
            wanted = reward + discount * worth
        loss = torch.zeros(())
        for name in ("q1", "q2"):
            loss = (self._value(name, state, action) - wanted).square().mean()
            self._descend(name, loss)
            for old, new in zip(
                self.nets[f"target{name[1]}"].parameters(),
                self.nets[name].parameters(),
                strict=True,
            ):
                old.data.lerp_(new.data, 0.005)
        return loss

    def actor_weights(self) -> State:
        return to_arrays(self._acting())

    def load_actor_weights(self, weights: State) -> None:
        with torch.no_grad():
            copy_into(self._acting(), weights)

    def state_dict(self) -> State:
        return to_arrays(self._all())

    def load_state_dict(self, state: State) -> None:
        tensors = self._all()
        with torch.no_grad():
            copy_into(tensors, state)
        self.generator.set_state(tensors["generator"])

    def _acting(self) -> dict[str, Tensor]:
        actor = {f"actor.{name}": value for name, value in self.nets["actor"].state_dict().items()}
        return {**actor, "mean": self.mean, "std": self.std}

    def _all(self) -> dict[str, Tensor]:
        networks = dict(self.nets.state_dict())
        return {**networks, **self._acting(), "generator": self.generator.get_state()}

    def _policy(self, state: Tensor) -> Tensor:
        action: Tensor = self.nets["actor"]((state - self.mean) / self.std).tanh()
        return action

    def _value(self, name: str, state: Tensor, action: Tensor) -> Tensor:
        seen = torch.cat([(state - self.mean) / self.std, action], -1)
        value: Tensor = self.nets[name](seen)[..., 0]
        return value

    def _descend(self, name: str, loss: Tensor) -> None:
        parameters = list(self.nets[name].parameters())
        for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data.sub_(self.rate * slope)


def _network(size: int, width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, out))


agent = TD3
