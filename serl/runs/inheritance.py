"""Starting from another run: from simulation to a real arm, or from an old task to a new one.

The parts in `init_from.load` are loaded, all others are fresh; recorded steps may enter replay.
An actor and critics of images can only be used with the encoder and trunk they were trained with.
The scale of observations belongs to the networks, regardless of `agent.normalise`. If actor and
critics are both loaded, the count of updates continues, and with it an annealed cloning term.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from serl.agent import AgentConfig, State
from serl.agents.encoder_weights import starting_file
from serl.agents.trunk_weights import digest_of_trunk
from serl.errors import BadInput, SerlError, SpecMismatch
from serl.log.episode_reader import PART, SEALED, episode_paths, read_episode, read_spec
from serl.reward import ProgressConfig, RewardConfig
from serl.runs.assembly import make_agent
from serl.runs.checkpoint import best, load, load_latest
from serl.runs.config import InitFrom, Part, TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.specs import Spec
from serl.system.files import digest_of
from serl.task import DemonstrationTask
from serl.types import ActionSource, Episode

_PARTS, _PART_CHARS = 3, 80  # shown of a difference between specs
_ARRAYS: dict[Part, tuple[str, ...]] = {
    "actor": ("actor.", "average."),
    "critics": ("critic.", "target.", "grasp.", "grasp_target."),
    "encoder": ("encoder.",),
    "normaliser": ("normaliser.",),
}
_SHARED = ("temperature.", "updates")
_OBSERVATION = {"observation"}
_GROUND_TRUTH = {"task", "human"}
"""Kinds of rewards that are ground truth; their rewards are valid in runs of the other kind too."""
_REWARD_SETTINGS: dict[str, tuple[str, ...]] = {
    "classifier": ("model", "threshold", "hold", "tool_low_m", "tool_high_m"),
    "pose": ("pose", "tolerance_m", "tolerance_rad"),
    "topic": ("topic", "message", "threshold"),
    "progress": ("topic", "message", "progress"),
}
_NEEDS = {"encoder": _OBSERVATION, "normaliser": _OBSERVATION}
"""Fields of the spec in which a part has to agree; other parts need all fields."""


class Inheritance(NamedTuple):
    """The parts of an agent that are taken over from another run.

    Attributes:
        origin: the setting `init_from` with an absolute path and the names of the loaded parts.
        state: arrays of the agent by name.
        lines: messages to the user that list the loaded, fresh and frozen parts.
    """

    origin: InitFrom
    state: State
    lines: tuple[str, ...]


def inherit(config: TrainConfig) -> Inheritance:
    """Return the parts that a run takes over from the other run's best checkpoint, else the newest.

    Raises:
        BadInput: `init_from.run` is not a run, has no checkpoint, or has stages with checkpoints of
            their own.
        CorruptData: the checkpoint is damaged.
        SpecMismatch: a part that is needed does not fit; the message gives the reason.
    """
    assert config.init_from.run is not None
    path = config.init_from.run.resolve()
    run = RunFolder.open(path)
    if run.config.stages:
        folders = ", ".join(str(part.path) for part in run.parts().values())
        raise BadInput(f"{path}: has stages, each with checkpoints of its own: expected {folders}")
    spec, theirs = make_spec(make_task(config)), make_spec(make_task(run.config))
    chosen = best(run.checkpoints)
    checkpoint = load(chosen) if chosen else load_latest(run.checkpoints)[0]
    mine = make_agent(config, spec, 0).state_dict()
    arrays = _acting(checkpoint.arrays["agent"], mine)
    parts: tuple[Part, ...] = get_args(Part)
    reasons = {part: _misfit(part, theirs, spec, arrays, mine) for part in parts}
    if "bc" in (run.config.agent.algorithm, config.agent.algorithm):
        reasons["critics"] = "bc trains none"
    requested = config.init_from.load
    if spec.observation.images:
        reasons["encoder"] = _other_trunk(run.config.agent, config.agent) or reasons["encoder"]
        _require_encoder(reasons, requested)
    loaded = requested
    if loaded is None:
        loaded = tuple(part for part in parts if part == "actor" or not reasons[part])
    kept = [part for part in parts if part in config.agent.frozen and part not in loaded]
    needed = kept if config.agent.encoder_weights in (None, "auto") else []
    for part in (*loaded, *needed):
        if reasons[part]:
            raise SpecMismatch(f"{path}: cannot start from its {part}: {reasons[part]}")
    if config.init_from.data != "none" and (difference := _data_misfit(run.config, config)):
        raise SpecMismatch(f"{path}: its steps are of no use here: {_shorten(difference)}")
    whole = all(part in loaded for part in ("actor", "critics"))
    taken = tuple(name for part in loaded for name in _ARRAYS[part])
    taken += _SHARED if whole else ()
    state = {name: array for name, array in arrays.items() if name.startswith(taken)}
    origin = config.init_from.model_copy(update={"run": path, "load": loaded})
    source = f"{path}, {checkpoint.step:,} steps of {theirs.task} by {run.config.agent.algorithm}"
    pretrained = starting_file(config.agent, spec.observation.images) is not None
    lines = _lines(origin, source, reasons, mine, whole, pretrained, config.agent)
    return Inheritance(origin, state, (*lines, *_reward_line(run.config.reward, config)))


def _acting(theirs: State, mine: State) -> State:
    """Return another run's arrays, whose actor is the one that acted: its average, if it has one.

    If this run averages its actor, the average begins there, too.
    """
    acting = {
        name.removeprefix(prefix): array
        for prefix in _ARRAYS["actor"]
        for name, array in theirs.items()
        if name.startswith(prefix)
    }
    kept = {name: array for name, array in theirs.items() if not name.startswith("average.")}
    prefixes = [each for each in _ARRAYS["actor"] if any(name.startswith(each) for name in mine)]
    return kept | {f"{each}{name}": acting[name] for each in prefixes for name in acting}


def _misfit(part: Part, theirs: Spec, spec: Spec, arrays: State, mine: State) -> str:
    """Return the reason why the other run's part does not fit; empty when it does."""
    if difference := _difference(theirs, spec, _NEEDS.get(part, set())):
        return f"its spec != this task's: {_camera_difference(theirs, spec)}{_shorten(difference)}"
    found, needed = (
        {name: array for name, array in state.items() if name.startswith(_ARRAYS[part])}
        for state in (arrays, mine)
    )
    if not needed:
        return "this run has none"
    for name in needed:
        here, there = _shape(needed[name]), _shape(found[name]) if name in found else "nothing"
        if here != there:
            return f"{name}: expected {here}, found {there}"
    unknown = sorted(found.keys() - needed.keys())
    return f"{unknown[0]}: expected nothing, found {_shape(found[unknown[0]])}" if unknown else ""


def _other_trunk(theirs: AgentConfig, mine: AgentConfig) -> str:
    """Return the difference of the frozen trunks that makes an encoder useless; empty if none."""
    there, here = digest_of_trunk(theirs), digest_of_trunk(mine)
    if there == here:
        return ""
    found, needed = (f"ResNet-10 {each[:12]}" if each else "no ResNet-10" for each in (there, here))
    return f"it was trained behind {found}, here is {needed}"


def _require_encoder(reasons: dict[Part, str], requested: Sequence[Part] | None) -> None:
    """Add to `reasons` that actor and critics do not fit without their own encoder."""
    for part in ("actor", "critics"):
        if reasons["encoder"]:
            reasons[part] = reasons[part] or f"its encoder does not fit: {reasons['encoder']}"
        elif requested is not None and part in requested and "encoder" not in requested:
            reasons[part] = reasons[part] or "it stands on an encoder, name it in init_from.load"


def _difference(theirs: Spec, mine: Spec, needed: set[str]) -> str:
    """Return the difference of two specs in the needed fields; by default all but `task`."""
    fields = (needed or set(Spec.model_fields)) - {"task"}
    others = {name: getattr(mine, name) for name in set(Spec.model_fields) - fields}
    return theirs.model_copy(update=others).difference(mine)


def _camera_difference(theirs: Spec, mine: Spec) -> str:
    """Return a phrase if only one of the specs has cameras; "" if both or neither have."""
    there, here = (
        "cameras" if spec.observation.images else "the state of the scene"
        for spec in (theirs, mine)
    )
    return "" if there == here else f"that run sees {there}, this one {here}: "


def _shorten(difference: str) -> str:
    """Return the first differences of `Spec.difference`, and the number of the others."""
    parts = difference.split("; ")
    shown = "; ".join(part[:_PART_CHARS] for part in parts[:_PARTS])
    return shown + (f"; and {len(parts) - _PARTS} more" if len(parts) > _PARTS else "")


def _data_misfit(theirs: TrainConfig, mine: TrainConfig) -> str:
    """Return the reason why steps of the other run cannot be learned from; empty if they can."""
    there, here = make_task(theirs), make_task(mine)
    of_topic = mine.reward.kind == "progress" and mine.reward.topic is not None
    trusted = theirs.reward.kind in _GROUND_TRUTH and not of_topic  # only a model can shape them
    if mine.init_from.data == "steps":
        trusted = mine.reward.kind == "vice" or (
            trusted and mine.reward.success_kind in _GROUND_TRUTH
        )
    alone = "(init_from.data none takes its networks alone)"
    if not trusted and (difference := _reward_difference(theirs.reward, mine.reward)):
        return f"{difference} {alone}"
    discounts = theirs.agent.discount, mine.agent.discount
    if theirs.reward.kind == "progress" and discounts[0] != discounts[1]:
        return "their rewards are shaped for agent.discount {}, here it is {} {}".format(
            *discounts, alone
        )
    if difference := _difference(make_spec(there), make_spec(here), set()):
        return difference
    if not isinstance(there, DemonstrationTask) or not isinstance(here, DemonstrationTask):
        return ""
    changed = [name for name in here.defined if here.defined[name] != there.defined.get(name)]
    return f"task_config.{changed[0]} are others there" if changed else ""


def _reward_difference(theirs: RewardConfig, mine: RewardConfig) -> str:
    """Return the reward setting in which the runs differ; empty if their rewards are the same."""
    kinds = (mine.kind, mine.success_kind)
    for name in ("kind", *(name for kind in kinds for name in _REWARD_SETTINGS.get(kind, ()))):
        there, here = (_comparable_setting(each, name) for each in (theirs, mine))
        if there != here:
            return f"their rewards are of reward.{name} {there}, here it is {here}"
    return ""


def _reward_line(theirs: RewardConfig, mine: TrainConfig) -> tuple[str, ...]:
    """Return a message if data with different rewards enters replay.

    The kind "vice" learns its own, and "progress" shapes the others.
    """
    entering, other = mine.init_from.data, _reward_difference(theirs, mine.reward)
    if entering == "none" or mine.reward.kind in ("vice", "progress") or not other:
        return ()
    return (f"its {entering} keep their rewards: {other}",)


def _comparable_setting(reward: RewardConfig, name: str) -> object:
    """Return a reward setting; for a model file, whose path may change, its digest if known."""
    if name == "progress":
        success, weight = reward.progress.success, reward.progress.weight
        return f"{success}, weight {weight:g}, model {_digest(reward.progress)}"
    return _digest(reward) if name == "model" else getattr(reward, name)


def _digest(owner: RewardConfig | ProgressConfig) -> object:
    if owner.model is None or (owner.sha256 is None and not owner.model.is_file()):
        return owner.model
    return (owner.sha256 or digest_of(owner.model))[:12]


def _shape(array: object) -> str:
    return f"{getattr(array, 'dtype', '')}{list(getattr(array, 'shape', ()))}"


def _lines(
    origin: InitFrom,
    source: str,
    reasons: dict[Part, str],
    mine: State,
    whole: bool,
    pretrained: bool,
    agent: AgentConfig,
) -> tuple[str, ...]:
    loaded = origin.load or ()
    own = [part for part in _ARRAYS if any(name.startswith(_ARRAYS[part]) for name in mine)]
    fresh = [
        f"{part} ({reasons[part]})" if reasons[part] else part
        for part in own
        if part not in (*loaded, "normaliser") and not (part == "encoder" and pretrained)
    ]
    fresh += [] if whole else ["temperature"]
    counted = "updates count on, there is no warm-up" if whole else "updates count from 0"
    scale = "as there" if "normaliser" in loaded else "anew, from this run's recordings"
    lines = [
        f"starts from {source}: with its {', '.join(loaded) or 'data alone'}",
        f"fresh: {', '.join([*fresh, 'optimiser, random numbers'])}; {counted}",
        f"observations are scaled {scale}",
    ]
    frozen: list[str] = [*agent.frozen]
    if agent.cached_features and agent.encoder == "small":
        frozen.append("its features of images (agent.cached_features)")
    if frozen:
        lines.append(f"frozen, no update changes it: {', '.join(frozen)}")
    return tuple(lines)


def link_episodes(origin: InitFrom, folder: Path) -> None:
    """Link the other run's sealed episodes into `folder`, by actor, unless `folder` exists.

    Afterwards the other run may continue or be deleted.

    Raises:
        BadInput: the other run is gone already.
        SerlError: linking or copying failed.
    """
    if origin.run is None or origin.data == "none" or folder.exists():
        return
    run, scratch = RunFolder.open(origin.run), folder.with_name(f".{folder.name}")
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        for actor in run.actors():
            (scratch / actor).mkdir()
            for path in episode_paths(run.episodes(actor)):
                if not path.name.endswith(PART):
                    _link(path, scratch / actor / path.name)
        scratch.rename(folder)
    except OSError as error:
        raise SerlError(f"{folder}: cannot keep episodes of {run.path}: {error}") from error


def inherited_episodes(origin: InitFrom, folder: Path, spec: Spec) -> Iterator[Episode]:
    """Yield the episodes linked by `link_episodes` that `init_from.data` selects, without resets.

    Raises:
        BadInput: no episode is selected.
        CorruptData: an episode is damaged.
    """
    found = False
    for path in sorted(folder.glob(f"*/*{SEALED}")):
        recorded = read_spec(path)
        named = spec.model_copy(update={"task": recorded.task}) if recorded else spec
        episode = read_episode(path, named)
        online = len(episode.steps) - episode.count(ActionSource.SCRIPT)
        if online and (episode.success or origin.data == "steps"):
            found = True
            yield episode
    if not found:
        unit = "episode with a step" if origin.data == "steps" else "success"
        raise BadInput(f"{origin.run}: init_from.data {origin.data}: it recorded no {unit}")


def _link(path: Path, to: Path) -> None:
    """Make a hard link to a file, or a copy where linking fails, as between disks."""
    try:
        os.link(path, to)
    except OSError:
        shutil.copy2(path, to)
