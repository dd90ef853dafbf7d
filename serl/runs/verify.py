"""Verification of a run: every record once and undamaged, every checkpoint as it was saved.

The log is checked for consistency (keys, hashes, counts), and compared with the number and the
content of the records that the learner accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from serl.errors import BadInput, CorruptData, SerlError, counted
from serl.log.content import CHECKSUM, ChecksumBlock, checksum
from serl.log.episode_reader import (
    PART,
    SEALED,
    EpisodeName,
    episode_name,
    episode_paths,
    open_episode,
)
from serl.log.index import Span, Stream, read_index
from serl.log.manifest import MANIFEST, Entry, read_entries
from serl.log.recovery import QUARANTINE, lost_records
from serl.runs import checkpoint
from serl.runs.folder import RunFolder
from serl.system.files import sha256_of
from serl.system.json_fields import printable
from serl.training.learner_stats import restore_progress
from serl.types import End

COUNTED = (
    "records: steps, and one record at the end of each episode",
    "accepted: records that a learner took; it takes none after its end, and reads demonstrations "
    "from their files",
)
"""Explanation of the numbers, printed below them."""
UNCOMPARED = (
    "the content of {:,} accepted records was not compared: the index has no checksums of them, "
    "as it was made by an earlier version of serl, or rebuilt from the log"
)
"""Remark on accepted records without checksums."""


class Contents(NamedTuple):
    """The content of one actor's log, in numbers.

    Attributes:
        starts: number of starts of the actor.
        episodes: files, open ones included.
        records: steps and ends.
        truncated: sealed episodes without an `End`, truncated by a crash.
        open: files that are being written, or wait to be recovered.
        quarantined: files in quarantine.
        accepted: records that the learner accepted.
    """

    actor: str
    starts: int
    episodes: int
    records: int
    truncated: int
    open: int
    quarantined: int
    accepted: int


class VerifyReport(NamedTuple):
    """The result of `verify`.

    Attributes:
        contents: contents of each log, demonstrations last.
        lost: records that are known to have existed and are not in the log, or that the learner
            passed over.
        duplicated: records that the learner accepted more than once.
        uncompared: accepted records whose content was not compared, as the index has no checksum.
        findings: faults, one line each, with the file and, where known, the byte.
    """

    contents: tuple[Contents, ...]
    checkpoints: int
    lost: int
    duplicated: int
    uncompared: int
    findings: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether the run has no fault."""
        return not (self.findings or self.lost or self.duplicated)

    def __str__(self) -> str:
        """Return a table of the logs, the faults, and one line of result."""
        rows = [Contents._fields, *self.contents]
        widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]
        counts = f"lost {self.lost}, duplicated {self.duplicated}"
        found = len(self.findings)
        verdict = "sound" if self.sound else counted(found, "finding")
        remarks = [UNCOMPARED.format(self.uncompared)] if self.uncompared else []
        lines += [*COUNTED, *remarks, *self.findings, f"{counts}: {verdict}"]
        return "\n".join(map(printable, lines))


def episode_folders(run: RunFolder) -> list[Path]:
    """Return the folders of episodes that `verify` reads, those of demonstrations included."""
    demonstrations = [run.demonstrations] if run.demonstrations.is_dir() else []
    return [*map(run.episodes, run.actors()), *_of_person(run), *demonstrations]


def _of_person(run: RunFolder) -> list[Path]:
    """Return the folders into which a person's recording sorts its episodes."""
    return [run.path, run.path / "failures", run.path / "undone"]


def verify(path: Path, on_episode: Callable[[], object] = lambda: None) -> VerifyReport:
    """Check all of a run, also while it is running; call `on_episode` after reading each episode.

    Raises:
        BadInput: the path is not a run.
    """
    run = RunFolder.open(path, data_only=True)
    findings: list[str] = []
    checkpoints = checkpoint.checkpoint_paths(run.checkpoints)
    pointer = run.checkpoints / checkpoint.LATEST
    if pointer.exists() and checkpoint.latest(run.checkpoints) is None:
        findings.append(f"{pointer}: does not name a checkpoint")
    # Read before the log, so that every record accepted here is in the log by then.
    spans, blocks = _read_accepted(run.index, findings)
    accepted, passed_over, duplicated = _coverage(spans)
    kept = [block for stream in blocks.values() for block in stream]
    cameras = max((block.cameras for block in kept), key=len, default=())
    logs = [
        _Log(run.episodes(actor), actor, cameras, on_episode, _of_person(run))
        for actor in run.actors()
    ]
    findings += [text for log in logs for text in log.differences(blocks)]
    if run.demonstrations.is_dir():
        logs.append(_Log(run.demonstrations, None, (), on_episode))
    if not logs and episode_paths(run.path):  # images that a person labelled
        logs.append(_Log(run.path, None, (), on_episode))
    held = {stream: count for log in logs for stream, count in log.held.items()}
    lost = {stream: count for log in logs for stream, count in log.unreadable.items()}
    for stream, cursor in accepted.items():
        missing = cursor - held.get(stream, 0) - lost.get(stream, 0)
        if missing > 0:
            lost[stream] = lost.get(stream, 0) + missing
            findings.append(
                f"{run.episodes(stream[0])}: {missing} records of the start {stream[1]} are "
                "missing, which the learner accepted"
            )
    if passed_over or duplicated:
        findings.append(f"{run.index}: {passed_over} passed over, {duplicated} accepted again")
    available = {
        stream: max(held.get(stream, 0), accepted[stream]) for stream in {*held, *accepted}
    }
    return VerifyReport(
        contents=tuple(log.contents(accepted) for log in logs),
        checkpoints=len(checkpoints),
        lost=sum(lost.values()) + passed_over,
        duplicated=duplicated,
        uncompared=max(
            0, accepted.total() - sum(len(block.checksums) // CHECKSUM.size for block in kept)
        ),
        findings=(
            *(text for log in logs for text in log.findings),
            *findings,
            *(text for path in checkpoints for text in _of_checkpoint(path, available)),
            *(_of_parts(run) if checkpoints else ()),
        ),
    )


class _File(NamedTuple):
    """An episode file that was read to its end or its first damage."""

    path: Path
    name: EpisodeName
    origin: tuple[str, str, str]  # run, actor, digest of the spec; empty for an empty file
    records: int
    checksums: bytes  # of each record; 4 bytes where images cannot be compared, else 8
    ended: bool
    sha256: str  # empty while it is open
    damage: str


class _Log:
    """The log in one folder of episodes, and those moved from it to others, read in full.

    Attributes:
        held: readable records by stream.
        unreadable: records by stream that the manifest lists and that cannot be read.
        findings: faults, one line each.
    """

    def __init__(
        self,
        folder: Path,
        actor: str | None,
        cameras: Sequence[str],
        on_episode: Callable[[], object],
        others: Sequence[Path] = (),
    ) -> None:
        self._folder, self._files = folder, list[_File]()
        paths = (path for each in (folder, *others) for path in episode_paths(each))
        for _, path in sorted({episode_name(path): path for path in paths}.items()):
            self._files.append(_read(path, cameras))
            on_episode()
        self.findings: list[str] = []
        try:
            self._entries = read_entries(folder)  # after the hashes: lines come before files
            moved = {file.name for file in self._files if file.path.parent != folder}
            lost = lost_records(folder)
            self._lost = {name: lost[name] for name in lost.keys() - moved}
        except BadInput as error:
            self._entries, self._lost = {}, {}
            self.findings.append(str(error))
        self._actor = actor or next((file.origin[1] for file in self._files), "")
        self.held: Counter[Stream] = Counter()
        for file in self._files:
            self.held[self._actor, file.name.epoch] += file.records
        self.unreadable: Counter[Stream] = Counter()
        self.findings += [file.damage for file in self._files if file.damage]
        self.findings += self._of_origin()
        self.findings += self._of_order()
        self.findings += self._of_manifest()

    def contents(self, accepted: Counter[Stream]) -> Contents:
        """Return the content of the log in numbers."""
        quarantine = self._folder / QUARANTINE
        return Contents(
            actor=self._actor,
            starts=len(self.held),
            episodes=len(self._files),
            records=self.held.total(),
            truncated=sum(not (file.ended or file.damage) for file in self._files if file.sha256),
            open=sum(not file.sha256 for file in self._files),
            quarantined=len(list(quarantine.iterdir())) if quarantine.is_dir() else 0,
            accepted=sum(accepted[stream] for stream in self.held),
        )

    def differences(self, blocks: Mapping[Stream, Sequence[ChecksumBlock]]) -> Iterator[str]:
        """Yield differences between the log's records and those that the learner accepted."""
        for (actor, epoch), learned in blocks.items():
            if actor != self._actor:
                continue
            logged = dict(self._checksums(epoch))
            different = [
                sequence
                for block in learned
                for sequence, mine in block.contents()
                if (found := logged.get(sequence)) and not _same(mine, found)
            ]
            if different:
                yield (
                    f"{self._folder}: {len(different)} records of the start {epoch} were learned "
                    f"that the log does not hold, the first is record {min(different)}"
                )

    def _checksums(self, epoch: int) -> Iterator[tuple[int, bytes]]:
        """Yield sequence number and checksum of a start's records, as far as they are known."""
        files = {file.name: file for file in self._files if file.name.epoch == epoch}
        lost = {name for name in self._lost if name.epoch == epoch}
        sequence = 0
        for name in sorted(files.keys() | lost):
            file = files.get(name)
            if file is not None:
                size = len(file.checksums) // max(1, file.records)
                for index in range(file.records):
                    yield sequence + index, file.checksums[size * index : size * (index + 1)]
            if file is None:
                sequence += self._lost[name]
            elif not file.damage:
                sequence += file.records
            elif listed := self._entries.get(name.path(self._folder, SEALED).name):
                sequence += max(entry.records for entry in listed)
            else:
                return  # the number of records after the damage is unknown

    def _of_origin(self) -> Iterator[str]:
        """Yield the files that differ from the first in run, actor or spec."""
        sound = [file for file in self._files if file.records and not file.damage]
        for file in sound:
            run, _, digest = sound[0].origin
            if file.origin != (run, self._actor, digest):
                found, expected = "/".join(file.origin), f"{run}/{self._actor}/{digest}"
                yield f"{file.path}: of {found} (run, actor, spec), expected {expected}"

    def _of_order(self) -> Iterator[str]:
        """Yield missing episodes, and episodes without an end that are not the last of a start."""
        for epoch, group in groupby(self._files, key=lambda file: file.name.epoch):
            files = list(group)
            missing = set(range(len(files))) - {file.name.episode for file in files}
            for episode in sorted(missing):
                path = EpisodeName(epoch, episode).path(self._folder, SEALED)
                if path.name not in self._entries:  # else `_of_manifest` reports it
                    yield f"{path}: missing"
            for file in files[:-1]:
                if not (file.ended or file.damage):
                    yield f"{file.path}: cut after {file.records} records, yet others follow"

    def _of_manifest(self) -> Iterator[str]:
        """Yield sealed files that differ from the manifest, and listed files that are missing."""
        sealed = [file for file in self._files if file.sha256]
        if sealed and not self._entries:
            yield f"{self._folder / MANIFEST}: lists none of {len(sealed)} files"
            return
        for file in sealed:
            listed = self._entries.get(file.name.path(self._folder, SEALED).name, [])
            if file.damage and file.name in self._lost:
                continue  # reported below
            if file.damage:
                unread = max((entry.records - file.records for entry in listed), default=0)
                self.unreadable[self._actor, file.name.epoch] += max(0, unread)
            elif not listed:
                yield f"{file.path}: not listed in {MANIFEST}"
            elif not any(_is_of(entry, file) for entry in listed):
                yield f"{file.path}: sha256 or number of records are not those in {MANIFEST}"
        for place, records in sorted(self._lost.items()):
            path = place.path(self._folder, SEALED)
            aside = (self._folder / QUARANTINE / path.name).exists()
            self.unreadable[self._actor, place.epoch] += records
            where = f"damaged, moved to {QUARANTINE}/" if aside else "gone"
            yield f"{path}: {where}, with {records} records"


def _is_of(entry: Entry, file: _File) -> bool:
    return (entry.sha256, entry.records, entry.ended) == (file.sha256, file.records, file.ended)


def _same(learned: bytes, logged: bytes) -> bool:
    """Return whether two checksums agree in the bytes that both have."""
    size = min(len(learned), len(logged))
    return learned[:size] == logged[:size]


def _read(path: Path, cameras: Sequence[str]) -> _File:
    """Decode every record of a file, check its key and compute its checksum."""
    origin, records, ended, digest, damage = ("", "", ""), 0, False, "", ""
    checksums = bytearray()
    try:
        with closing(open_episode(path)) as file:
            is_open = file.path.name.endswith(PART)
            for message in file.prefix() if is_open else file.whole():
                record = file.record(message)
                if ended or record.key != file.key(records):
                    raise CorruptData(
                        f"{file.path}: byte {message.offset}: expected "
                        f"{'nothing' if ended else file.key(records)}, got {record.key}"
                    )
                has_all = record.observation.images.keys() >= set(cameras)
                comparable = has_all and file.metadata["images"] != "jpeg"  # which is lossy
                content = checksum(record, cameras if comparable else ())
                checksums += content if comparable else content[: CHECKSUM.size // 2]
                records, ended = records + 1, isinstance(record, End)
            if file.spec is not None:
                origin = file.metadata["run"], file.metadata["actor"], file.spec.digest
        digest = "" if is_open else sha256_of(file.path)
    except BadInput as error:
        digest, damage = "?", str(error)
    name = episode_name(path)
    return _File(path, name, origin, records, bytes(checksums), ended, digest, damage)


def _read_accepted(
    path: Path, findings: list[str]
) -> tuple[list[Span], Mapping[Stream, Sequence[ChecksumBlock]]]:
    try:
        return read_index(path)
    except SerlError as error:
        findings.append(str(error))
        return [], {}


def _coverage(spans: Sequence[Span]) -> tuple[Counter[Stream], int, int]:
    """Return the accepted end of each stream, and the numbers of skipped and repeated records."""
    ends: Counter[Stream] = Counter()
    passed_over = duplicated = 0
    for span in spans:
        end = ends[span.stream]
        passed_over += max(0, span.first - end)
        duplicated += max(0, min(end, span.first + span.length) - span.first)
        ends[span.stream] = max(end, span.first + span.length)
    return ends, passed_over, duplicated


def _of_parts(run: RunFolder) -> Iterator[str]:
    """Yield the missing files that a learner needs to resume from a checkpoint."""
    if not run.index.exists():
        yield f"{run.index}: missing"
    recorded = run.config.demos and not run.config.demo_paths
    if recorded and not run.demonstrations.is_dir():
        yield f"{run.demonstrations}: missing"


def _of_checkpoint(path: Path, available: Mapping[Stream, int]) -> Iterator[str]:
    """Yield damage of a checkpoint, and records it counts that are neither logged nor accepted."""
    try:
        taken = restore_progress(checkpoint.load(path).info).taken
    except CorruptData as error:
        if path.exists():  # else it was replaced by newer ones meanwhile
            yield str(error)
        return
    for (actor, epoch), count in taken.items():
        if count > available.get((actor, epoch), 0):
            found = available.get((actor, epoch), 0)
            yield f"{path}: took {count} records of {actor}/{epoch}, of which {found} are known"
