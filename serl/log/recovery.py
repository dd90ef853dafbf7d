"""What a crash left behind in an actor's folder is made into sealed episodes again."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

from serl.log.episode_writer import EpisodeWriter
from serl.log.episode_reader import PART, SEALED, EpisodeFile, episode_name, episode_paths
from serl.errors import CorruptData, SerlError
from serl.system.files import sha256_of, sync_folder
from serl.log.manifest import Entry, append_entry, read_entries
from serl.log.quarantine import into_quarantine
from serl.log.episode_log import lock_log
from serl.log.wire import END

_SCRATCH = ".recovered"


def recover(folder: Path) -> list[Path]:
    """Seal what an actor left open when it died: the undamaged beginning, truncated by the crash.

    A truncated episode has no `End`; its manifest line says so. A file of which a part had to be
    left out is kept in `quarantine/`, and so is one whose predecessor lost its end: after a power
    cut a later file may be on the disk without an earlier one. Does no harm if it is cut short
    itself and started again.

    Returns:
        The sealed files.

    Raises:
        BadInput: the actor is alive, or the folder cannot be written to.
        SerlError: the disk refused.
    """
    with lock_log(folder):
        try:
            for scratch in folder.glob(f"*{_SCRATCH}"):
                scratch.unlink()
            _list_unlisted(folder)
            parts = sorted(folder.glob(f"*{PART}"), key=episode_name)
            sealed = [path for part in parts if (path := _recover_file(part)) is not None]
        except OSError as error:
            raise SerlError(f"log: cannot recover {folder}: {error}") from error
        return sealed


def _recover_file(part: Path) -> Path | None:
    """Rewrite one file under a hidden name, seal it, then take the old one away.

    Even a whole file is rewritten: it may be one that the disk refused to sync.
    """
    if not _follows(part):
        into_quarantine(part)
        return None
    with closing(EpisodeFile(part)) as source:
        sealed = _rewrite(source)
        whole = source.sealed or source.offset == part.stat().st_size
    if whole:
        part.unlink()
        sync_folder(part.parent)
    else:
        into_quarantine(part)
    return sealed


def _follows(part: Path) -> bool:
    """Whether nothing is missing between an open file and those before it in its epoch."""
    name = episode_name(part)
    if name.episode == 0:
        return True
    before = name._replace(episode=name.episode - 1).path(part.parent, SEALED)
    entries = read_entries(part.parent).get(before.name)
    return bool(entries and entries[-1].ended)


def _rewrite(source: EpisodeFile) -> Path | None:
    """Copy the undamaged beginning into a sealed file; None when there is no record in it."""
    writer: EpisodeWriter | None = None
    try:
        for message in source.prefix():
            assert source.spec is not None  # it comes before the first message
            if writer is None:
                writer = EpisodeWriter(source.path.parent, _SCRATCH, source.metadata, source.spec)
            writer.copy(message)
    except BaseException:
        if writer is not None:
            writer.discard()
        raise
    return writer.seal(recovered=True) if writer else None


def _list_unlisted(folder: Path) -> None:
    """Add sealed files that the manifest does not have, if they are sound."""
    listed = read_entries(folder)
    for path in episode_paths(folder):
        if path.name not in listed:
            with suppress(CorruptData), closing(EpisodeFile(path, checksum=True)) as file:
                kinds = [message.kind for message in file.whole()]
                size = path.stat().st_size
                entry = Entry(
                    path.name, size, sha256_of(path), len(kinds), kinds[-1:] == [END], True
                )
                append_entry(folder, entry)
