"""Recorded episodes as Arrow tables, cached in one file for each table.

The cache lies in `.columns` beside the episode files, and holds the numbers of sealed episodes
without their images. New episodes are added to it; a damaged or unwritable cache costs only time.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.log.columns import EpisodeColumns, read_columns
from serl.log.episode_reader import PART, episode_name, episode_paths
from serl.log.metrics import ROWS, read_metrics
from serl.specs import Spec
from serl.system.json_fields import printable, short
from serl.types import ActionSource

FORMAT = 1
FOLDER = ".columns"
_TEXTS = {"reward_provenance", "source"}
_SPEC = b"serl.spec"
_TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "float | None": pa.float64(),
    "bool": pa.bool_(),
}
"""Types of the columns of metrics by the annotation of the field, other than text."""
_TOGETHER = 1000  # episodes of which an Arrow table is made at once


class Table:
    """A table of recorded numbers, as Arrow, numpy or pandas.

    Attributes:
        arrow: the table; memory-mapped where it comes from a cache.
    """

    def __init__(self, arrow: pa.Table) -> None:
        self.arrow = arrow

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        """Return a column; numbers are not copied, and not writable.  # (N, ...)."""
        chunks = self.arrow.column(name)
        column = chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()
        shape = [len(column)]
        while pa.types.is_fixed_size_list(column.type):
            shape.append(column.type.list_size)
            column = column.flatten()
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        plain = pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
        array = column.to_numpy(zero_copy_only=plain and not column.null_count)
        return np.asarray(array).reshape(shape)

    def numpy(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return all columns by name."""
        return {name: self[name] for name in self.arrow.column_names}

    def pandas(self) -> Any:
        """Return a pandas `DataFrame`; an array of several numbers becomes a column for each.

        Raises:
            BadInput: pandas is not installed.
        """
        if find_spec("pandas") is None:
            raise BadInput("pandas is not installed: pip install 'serl[data]'")
        columns: dict[str, Any] = {}
        for name, column in zip(self.arrow.column_names, self.arrow.columns, strict=True):
            if pa.types.is_fixed_size_list(column.type):
                parts = range(column.type.list_size)
                columns |= {f"{name}[{part}]": pc.list_element(column, part) for part in parts}
            else:
                columns[name] = column
        return pa.table(columns).to_pandas()


def metrics_table(path: Path, kind: str) -> Table:
    """Return the rows of a kind in a file of metrics as a table; absent fields are null.

    The table has all fields of the kind also without a row; rows may have more fields.

    Raises:
        BadInput: no such kind.
        CorruptData: a value does not fit its field.
    """
    if kind not in ROWS:
        raise BadInput(f"metrics: expected one of {', '.join(ROWS)}, got {short(kind)}")
    rows = [row for row in read_metrics(path) if row["kind"] == kind]
    types = {"kind": pa.string(), "time_s": pa.float64(), "steps": pa.int64()}
    types |= {each.name: _TYPES.get(str(each.type), pa.string()) for each in fields(ROWS[kind])}
    columns = {}
    for name in dict.fromkeys((*types, *(name for row in rows for name in row))):
        values = [row.get(name) for row in rows]
        if types.get(name) == pa.int64():
            values = [_whole(each, f"{path}: {kind}.{name}") for each in values]
        try:
            columns[name] = pa.array(values, types.get(name))
        except (pa.ArrowException, OverflowError) as error:
            line = printable(" ".join(str(error).split()), 200)
            raise CorruptData(f"{path}: {kind}.{name}: {line}") from error
    return Table(pa.table(columns))


def _whole(value: Any, where: str) -> Any:
    """Return a whole float as an integer; Arrow would cut 2.5 to 2, which raises `CorruptData`."""
    if not isinstance(value, float):
        return value
    if not value.is_integer():
        raise CorruptData(f"{where}: expected a whole number, got {value}")
    return int(value)


class RecordingTables(NamedTuple):
    """The episodes of a folder or of several.

    Attributes:
        spec: common spec of their states and actions, without images.
        steps: a row for each step, in the order of the episodes.
        episodes: a row for each episode, by actor, epoch and number.
        paths: file of each episode.
    """

    spec: Spec
    steps: Table
    episodes: Table
    paths: Sequence[Path]


def read_recording(folders: Mapping[str, Path], cache: Path) -> RecordingTables:
    """Read the sealed episodes of folders, by the name of their actor, through the cache.

    Args:
        folders: folders of episode files.
        cache: folder in which `.columns` is kept.

    Raises:
        CorruptData: an episode is damaged, or there is none.
        SpecMismatch: two episodes have different states or actions.
    """
    found = {
        f"{actor}/{epoch}-{number:06d}": path
        for actor, folder in sorted(folders.items())
        for path in episode_paths(folder)
        if not path.name.endswith(PART)
        for epoch, number in [episode_name(path)]
    }
    if not found:
        raise CorruptData(f"{cache}: expected sealed episodes, found none")
    names = hashlib.sha256("\n".join([str(FORMAT), *found]).encode()).hexdigest()[:16]
    home = cache / FOLDER / names
    tables = _mapped(home)
    if tables is None or tables.names != list(found):
        before = [each for path in (cache / FOLDER).glob("*") if (each := _mapped(path))]
        tables = _built(found, max(before, key=lambda each: len(each.names), default=None))
        with suppress(OSError):  # where nothing can be written, it is built each time
            _save(home, tables)
            tables = _mapped(home) or tables
    spec = Spec.model_validate_json(tables.steps.schema.metadata[_SPEC])
    return RecordingTables(spec, Table(tables.steps), Table(tables.episodes), list(found.values()))


class _Tables(NamedTuple):
    steps: pa.Table
    episodes: pa.Table

    @property
    def names(self) -> list[str]:
        """The names of the episodes, in order."""
        names: list[str] = self.episodes.column("name").to_pylist()
        return names

    @property
    def spec(self) -> bytes:
        """The spec as JSON."""
        text: bytes = (self.steps.schema.metadata or {}).get(_SPEC, b"")
        return text

    def pieces(self) -> Iterator[tuple[str, _Tables]]:
        """Yield the name and the rows of each episode."""
        start = 0
        lengths = self.episodes.column("steps").to_pylist()
        for row, (name, length) in enumerate(zip(self.names, lengths, strict=True)):
            yield name, _Tables(self.steps.slice(start, length), self.episodes.slice(row, 1))
            start += length


def _mapped(folder: Path) -> _Tables | None:
    """Return the cached tables, memory-mapped; None if there are none, or they are damaged."""
    try:
        tables = _Tables(
            *(
                pa.ipc.open_file(pa.memory_map(str(folder / f"{name}.arrow"))).read_all()
                for name in _Tables._fields
            )
        )
        for table in tables:
            table.validate(full=True)
        Spec.model_validate_json(tables.spec)
        whole = sum(tables.episodes.column("steps").to_pylist()) == tables.steps.num_rows
        return tables if whole else None
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None


def _built(found: Mapping[str, Path], before: _Tables | None) -> _Tables:
    """Return the tables of episodes, with those of earlier tables taken from them."""
    known = dict(before.pieces()) if before else {}
    spec = None
    if before and not known.keys().isdisjoint(found):
        spec = Spec.model_validate_json(before.spec)
    pieces = list[_Tables]()
    together = groupby(enumerate(found), lambda each: (each[1] in known, each[0] // _TOGETHER))
    for (in_cache, _), group in together:
        names = [name for _, name in group]
        if in_cache:
            pieces += [known[name] for name in names]
        else:
            read = {name: read_columns(found[name]) for name in names}
            spec = _common_spec(spec, {found[name]: each.spec for name, each in read.items()})
            pieces.append(_Tables(_steps(list(read.values())), _episodes(read)))
    assert spec is not None
    episodes = pa.concat_tables([piece.episodes for piece in pieces]).combine_chunks()
    steps = pa.concat_tables([piece.steps for piece in pieces])
    numbers = np.repeat(np.arange(len(found), dtype=np.int32), episodes.column("steps").to_numpy())
    place = steps.schema.get_field_index("episode")
    steps = steps.set_column(place, "episode", pa.array(numbers)).unify_dictionaries()
    described = {_SPEC: spec.model_dump_json().encode()}
    return _Tables(steps.combine_chunks().replace_schema_metadata(described), episodes)


def _common_spec(spec: Spec | None, specs: Mapping[Path, Spec]) -> Spec:
    """Return the spec of files without images; raise `SpecMismatch` if one has another."""
    last = None
    for path, each in specs.items():
        if each is not last:  # episodes of a run share theirs
            last, own = each, each.with_images(())
            if spec is not None and own != spec:
                raise SpecMismatch(f"{path}: other than earlier episodes: {own.difference(spec)}")
            spec = own
    assert spec is not None
    return spec


def _steps(episodes: Sequence[EpisodeColumns]) -> pa.Table:
    """Return the rows of the steps of episodes; the numbers of the episodes are not known yet."""
    index = np.concatenate([np.arange(each.key.index, dtype=np.int32) for each in episodes])
    columns = {"episode": pa.array(np.zeros_like(index)), "index": pa.array(index)}
    for part in episodes[0].state:
        columns[f"state.{part}"] = _lists(np.concatenate([each.state[part] for each in episodes]))
    columns["requested"] = _lists(np.concatenate([each.requested for each in episodes]))
    columns["action"] = _lists(np.concatenate([each.action for each in episodes]))
    for name in episodes[0].scalars:
        arrays = [each.scalars[name] for each in episodes]
        if name in _TEXTS:  # not as one array, which has the longest text's size in each row
            texts = pa.chunked_array([pa.array(array, pa.string()) for array in arrays])
            columns[name] = texts.combine_chunks().dictionary_encode()
        else:
            columns[name] = pa.array(np.concatenate(arrays))
    return pa.table(columns)


def _episodes(episodes: Mapping[str, EpisodeColumns]) -> pa.Table:
    """Return the rows of episodes, by name."""
    rows = [_episode(name, episode) for name, episode in episodes.items()]
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    for part, array in next(iter(episodes.values())).state.items():
        unknown = {part: np.full(array.shape[1:], np.nan, np.float32)}
        finals = [(each.final or unknown)[part] for each in episodes.values()]
        columns[f"final.{part}"] = _lists(np.stack(finals))
    return pa.table(columns)


def _episode(name: str, episode: EpisodeColumns) -> dict[str, Any]:
    """Return the row of an episode, without its final state."""
    key, scalars = episode.key, episode.scalars
    return {
        "name": name,
        "run": key.run,
        "actor": key.actor,
        "epoch": key.epoch,
        "episode": key.episode,
        "steps": key.index,
        "success": episode.success,
        "reason": episode.reason,
        "ended": episode.final is not None,
        "return": float(scalars["reward"].sum()),
        "human_steps": int((scalars["source"] == ActionSource.HUMAN).sum()),
        "script_steps": int((scalars["source"] == ActionSource.SCRIPT).sum()),
        "wall_s": float(scalars["wall_s"][0]) if key.index else math.nan,
    }


def _lists(array: np.ndarray[Any, Any]) -> pa.Array:
    """Return an array (N, ...) as an Arrow array of N lists."""
    column = pa.array(np.ascontiguousarray(array, np.float32).reshape(-1))
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _save(home: Path, tables: _Tables) -> None:
    """Replace the cache: a new folder, then the removal of older ones."""
    home.parent.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=home.parent))
    try:
        for name, table in tables._asdict().items():
            with pa.ipc.new_file(str(scratch / f"{name}.arrow"), table.schema) as writer:
                writer.write_table(table)
        shutil.rmtree(home, ignore_errors=True)
        scratch.rename(home)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for other in home.parent.iterdir():
        if other != home:
            shutil.rmtree(other, ignore_errors=True)
