"""Export of recorded episodes: their arrays for a format, and the upload of a written data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from serl.datasets.exchange import EpisodeArrays
from serl.datasets.serl_import import Values
from serl.errors import BadInput, SerlError, counted
from serl.log.episode_reader import PART, episode_paths, read_episode, read_spec
from serl.runs.demonstrations import is_reset
from serl.runs.folder import CONFIG, RunFolder
from serl.specs import Spec
from serl.types import UNJUDGED, EndReason, Episode


class Recorded(NamedTuple):
    """Episodes of a run or a recording, for export.

    Attributes:
        spec: spec of their observations and actions.
        paths: sealed files of episodes.
        resets: files of scripted resets that were left out, once `episodes` has read them.
        discarded: files of episodes that a person discarded, likewise.
        successes_only: whether other episodes are left out.
        for_viewing: whether all complete episodes are kept as recorded, unless `successes_only`.
        on_file: called after each file.
    """

    spec: Spec
    robot: str
    paths: Sequence[Path]
    resets: list[Path]
    discarded: list[Path]
    successes_only: bool = False
    for_viewing: bool = False
    on_file: Callable[[], object] = lambda: None

    def episodes(self) -> Iterator[EpisodeArrays]:
        """Yield the complete episodes; each is read when it is needed."""
        as_recorded = self.for_viewing and not self.successes_only
        for path in self.paths:
            episode = read_episode(path, self.spec)
            if not as_recorded and is_reset(episode):
                self.resets.append(path)
            elif not as_recorded and episode.end and episode.end.reason is EndReason.DISCARDED:
                self.discarded.append(path)
            elif episode.end and (episode.success or not self.successes_only):
                kept = episode if as_recorded else without_unjudged(episode)
                if kept.steps:
                    yield as_arrays(kept)
            self.on_file()

    @property
    def left_out(self) -> str:
        """The kinds and numbers of the episodes that were left out so far; "" for none."""
        resets, discarded = len(self.resets), len(self.discarded)
        parts = [
            f"{counted(resets, 'scripted reset')} (no demonstration of the task)" if resets else "",
            f"{counted(discarded, 'episode')} that a person discarded" if discarded else "",
        ]
        return "; ".join(filter(None, parts))

    def none_found(self) -> BadInput:
        """Return the error of a format that got no episode."""
        left_out = f"; left out: {self.left_out}" if self.left_out else ""
        expected = "a success (--successes)" if self.successes_only else "complete episodes"
        return BadInput(f"expected {expected}, found none{left_out}")


def recorded(path: Path, successes_only: bool = False, for_viewing: bool = False) -> Recorded:
    """Return the episodes of a run, a recording or a folder of episode files.

    Episodes without a step, those that a crash cut or a person discarded, scripted resets, and
    last steps without a reward are left out.

    Raises:
        BadInput: the folder is none of these, or holds no sealed episode; or a state array and a
            camera have the same name.
    """
    robot, folders = "", [path]
    if (path / CONFIG).exists() or not episode_paths(path):
        run = RunFolder.open(path, data_only=True)
        if run.config.stages:
            raise BadInput(f"{path}: has stages, each a run: expected one of them")
        robot = Path(str(run.config.robot or "")).stem
        folders = [path] if episode_paths(path) else [run.episodes(each) for each in run.actors()]
    paths = [
        file for each in folders for file in episode_paths(each) if not file.name.endswith(PART)
    ]
    spec = next(filter(None, map(read_spec, paths)), None)
    if spec is None:
        raise BadInput(f"{path}: expected sealed episodes, found none")
    if both := sorted(spec.observation.state.keys() & spec.observation.images.keys()):
        raise BadInput(f"{path}: {both[0]} names both a state array and a camera's view")
    return Recorded(spec, robot, paths, [], [], successes_only, for_viewing)


def without_unjudged(episode: Episode) -> Episode:
    """Return a complete episode without a last step of unknown reward and result, as of a fault.

    It then ends, truncated, with the observation before that step.
    """
    if not episode.steps or episode.steps[-1].reward_provenance != UNJUDGED:
        return episode
    *steps, last = episode.steps
    assert episode.end is not None
    return Episode(tuple(steps), replace(episode.end, key=last.key, observation=last.observation))


def as_arrays(episode: Episode) -> EpisodeArrays:
    """Return a complete episode as arrays."""
    steps, end = episode.steps, episode.end
    assert end is not None
    seen = [*(step.observation for step in steps), end.observation]
    observations: dict[str, Values] = {
        **{name: np.stack([each.state[name] for each in seen]) for name in seen[0].state},
        **{name: np.stack([each.images[name] for each in seen]) for name in seen[0].images},
    }
    return EpisodeArrays(
        observations=observations,
        action=np.stack([step.action for step in steps]),
        reward=np.array([step.reward for step in steps], np.float64),
        terminated=steps[-1].terminated,
        success=end.success,
        reason=end.text,
        requested=np.stack([step.requested for step in steps]),
        source=[step.source.value for step in steps],
        provenance=[step.reward_provenance for step in steps],
        policy_version=np.array([step.policy_version for step in steps], np.int64),
        wall_s=np.array([step.wall_s for step in steps], np.float64),
    )


def state_vectors(episode: EpisodeArrays, spec: Spec) -> Values:
    """Return the state arrays, in declared order, as vectors.  # (N + 1, D)."""
    rows = len(episode) + 1
    parts = [episode.observations[name].reshape(rows, -1) for name in spec.observation.state]
    return np.concatenate([np.zeros((rows, 0)), *parts], axis=1).astype(np.float32)


def push(folder: Path, repository: str, tag: str, endpoint: str | None = None) -> str:
    """Upload a written data set to the Hugging Face Hub; return its address.

    The repository is private unless it exists. LeRobot finds the version by the tag, which is
    moved to this upload if the repository has it.

    Args:
        folder: the data set.
        repository: name of the repository, OWNER/NAME.
        tag: version of the data set's format.
        endpoint: address of the Hub; None for the usual one, or that in `HF_ENDPOINT`.

    Raises:
        BadInput: there is no token.
        KeyboardInterrupt: Ctrl-C; the message says what was kept.
        SerlError: the Hub refused the upload, or cannot be reached.
    """
    check_token()
    import huggingface_hub
    from huggingface_hub.errors import RevisionNotFoundError

    api = huggingface_hub.HfApi(endpoint=endpoint, library_name="serl")
    given = {"repo_id": repository, "repo_type": "dataset"}
    try:
        address = api.create_repo(**given, private=True, exist_ok=True)
        api.upload_folder(**given, folder_path=folder, commit_message="Upload episodes of serl")
        with suppress(RevisionNotFoundError):
            api.delete_tag(**given, tag=tag)
        api.create_tag(**given, tag=tag)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"not uploaded; kept in {folder}") from None
    except Exception as error:  # of any HTTP library that huggingface_hub uses
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise SerlError(f"{repository}: not uploaded: {reason[0]}; kept in {folder}") from error
    return str(address)


def check_token() -> None:
    """Raise `BadInput` unless there is a token of the Hugging Face Hub."""
    import huggingface_hub

    if not huggingface_hub.get_token():
        raise BadInput("--push-to-hub: found no token; set HF_TOKEN, or run `hf auth login`")
