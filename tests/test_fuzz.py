"""Fuzzing of every decoder: a mutant decodes or is refused with `BadInput`, nothing else.

Most mutants get a valid checksum again, because a wrong one is refused early.
"""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from itertools import cycle, islice, product
from pathlib import Path
from random import Random
from typing import NamedTuple
from zlib import crc32

import numpy as np
import psutil
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.opcode import Opcode
from mcap.records import Metadata

from serl.agents.classifier import Card, Classifier
from serl.agents.pretraining import PretrainedEncoder, load_encoder, save_encoder
from serl.camera import View
from serl.errors import BadInput
from serl.log.annotations import LABELS_FILE as LABELS
from serl.log.annotations import StepKey, append_labels, read_labels
from serl.log.compression import compact
from serl.log.episode_log import LogConfig
from serl.log.episode_reader import PART, EpisodeFile, count_records, read_episode
from serl.log.episode_writer import EpisodeWriter, metadata_of
from serl.log.manifest import MANIFEST, read_entries
from serl.log.mcap_reader import HEAD, MAGIC, parse, read_messages
from serl.log.metrics import MetricsWriter
from serl.log.ros_messages import U32
from serl.log.wire import (
    Hello,
    WireFrame,
    decode_arrival,
    decode_frame,
    decode_hello,
    decode_record,
    encode_frame,
    encode_hello,
    encode_lost,
    encode_record,
    record_parts,
)
from serl.runs import checkpoint
from serl.runs.config import TrainConfig, resolve
from serl.runs.folder import RunFolder
from serl.runs.resume import Continuation
from serl.runs.reward_data import VIEWS, read_sight, write_views
from serl.system.authentication import load_key, sign, verify
from serl.system.json_fields import dump_object, parse_object
from serl.system.pickles import decode_pickle
from serl.system.settings_file import checked, read_yaml
from serl.testing.samples import EPOCH, SPEC, leave_open, random_records, write_log
from serl.training.learner_stats import restore_progress
from serl.training.link import decode_snapshot, encode_snapshot
from serl.transport import Snapshot
from serl.types import Key, LostRecord

from .support.mutations import (
    TOKEN,
    WORDS,
    mutated,
    reseal_chunk,
    reseal_episode,
    reseal_frame,
    reseal_record,
    reseal_snapshot,
)

EACH = 5  # step through the replacement words; must not divide their number
SHORT, LONG = 2_500, 1_200_000
ALLOWED_GROWTH_MB = 50.0
COVERAGE_S = 300
FOOTER = struct.Struct("<QQI")  # start of the summary, start of its offsets, CRC
ROOT = Path(__file__).parents[1]
PICKLES = sorted((ROOT / "tests/data").glob("*.pkl"))
KEY = bytes(range(32))
TEXTS = ("record", "loss", "hello", "object", "progress", "manifest", "config", "key")
COUNTERS = {"taken": [["actor0", EPOCH, 12]], "trained": {"actor0": 9}, "version": 4}
CHECKPOINT = ("MANIFEST.json", "info.json", "agent.safetensors")


class Decoder(NamedTuple):
    """Decoder of untrusted bytes.

    Attributes:
        samples: valid inputs.
        decode: reads an input; may raise `BadInput`.
        reseal: corrects the checksums of a mutant; None if the format has none.
    """

    samples: list[bytes]
    decode: Callable[[bytes], object]
    reseal: Callable[[bytes], bytes] | None = None


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoder]:
    return make_decoders(tmp_path_factory.mktemp("fuzz"))


def make_decoders(folder: Path) -> dict[str, Decoder]:
    records = random_records(3)
    payloads = [encode_record(record) for record in (records[0], records[-1])]
    weights = {"w": np.ones((2, 3), np.float32), "n": np.arange(4.0)}
    snapshot = encode_snapshot(Snapshot(7, {"actor0": 12}, weights), SPEC.digest)
    hello = encode_hello(Hello("run", "actor0", EPOCH, SPEC, "0" * 32, "here:/runs"))
    return {
        "record": Decoder(payloads, partial(_decode_and_write, folder), reseal_record),
        "loss": Decoder(
            [encode_lost(LostRecord(records[0].key, last=True))],
            lambda data: decode_arrival(data, SPEC),
        ),
        "frame": Decoder(
            [b"".join(encode_frame(WireFrame(5, EPOCH, 3, payloads[0])))],
            _decode_stream,
            reseal_frame,
        ),
        "hello": Decoder([hello], partial(_claim, _make_continuation(folder))),
        "snapshot": Decoder(
            [snapshot], lambda data: decode_snapshot(data, SPEC.digest), reseal_snapshot
        ),
        "signed": _signed(payloads[0]),
        "pickle": Decoder([path.read_bytes() for path in PICKLES], decode_pickle),
        "object": Decoder([dump_object({"a": [1, 2.5, "x"]})], lambda d: parse_object(d, "it")),
        **_file_decoders(folder),
        **_reward_decoders(folder),
    }


def _file_decoders(folder: Path) -> dict[str, Decoder]:
    sealed, *_ = write_log(folder / "sealed", random_records(3))
    part = leave_open(folder / "part", random_records(3, ended=False))
    smaller, *_ = write_log(folder / "png", random_records(3))
    assert compact(smaller, LogConfig(min_free_bytes=0))
    chunk, metadata = _blocks(sealed)
    settings = yaml.safe_dump({"task": "reach", "steps": 5, "agent": {"utd": 4, "tau": 0.005}})
    entries = sealed.with_name(MANIFEST)
    return {
        "sealed episode": _file(sealed, lambda path: read_episode(path, SPEC), reseal_episode),
        "open episode": _file(part, lambda path: read_episode(path, SPEC), reseal_episode),
        "compressed episode": _file(smaller, lambda path: read_episode(path, SPEC), reseal_episode),
        "chunk": Decoder([chunk], read_messages, reseal_chunk),
        "metadata": Decoder([metadata], partial(parse, Metadata)),
        "summary": _summary(sealed),
        "progress": Decoder([dump_object(COUNTERS)], _restore),
        "manifest": _file(entries, lambda path: read_entries(path.parent)),
        **{f"checkpoint's {name}": _checkpoint(folder, name) for name in CHECKPOINT},
        "config": _file(_written(folder / "config.yaml", settings.encode()), _read_config),
        "key": _file(_written(folder / "key", KEY.hex().encode()), load_key),
    }


def _reward_decoders(folder: Path) -> dict[str, Decoder]:
    """Return the decoders of reward models and their training data."""
    folder = folder / "reward"
    view = View(camera="front", width=8, height=8)
    write_views(folder, {"front": view})
    append_labels(folder, [(StepKey(1, 2, 3), 1), (StepKey(1, 2, 4), 0)], "script", 1.0)
    model, encoder = folder / "model.safetensors", folder / "encoder.safetensors"
    card = Card(views={"front": view}, channels=(2, 2), latent=2, hidden=2)
    made = Classifier.create(card, torch.Generator().manual_seed(0))
    made.save(model)
    network = Classifier.networks(card)[0]
    parts = {name: part[0].numpy() for name, part in network.views(made.encoder_flat).items()}
    save_encoder(encoder, PretrainedEncoder(parts, {}, dict(network.cameras)), {})
    return {
        "reward model": _file(model, Classifier.load),
        "encoder": _file(
            encoder, lambda path: load_encoder(path, network, made.encoder_flat.clone())
        ),
        "views": _file(folder / VIEWS, lambda path: read_sight(path.parent)),
        "labels": _file(folder / LABELS, lambda path: read_labels(path.parent)),
    }


def _summary(episode: Path) -> Decoder:
    """Return the decoder of the record count in the summary of a sealed episode."""
    data = episode.read_bytes()
    start, *_ = FOOTER.unpack_from(data, len(data) - len(MAGIC) - FOOTER.size)
    path = _written(episode.with_name("1-000000.mcap"), data)
    blocks, place = {}, start
    while place + HEAD.size < len(data):
        opcode, length = HEAD.unpack_from(data, place)
        blocks[opcode] = data[place : place + HEAD.size + length]
        place += HEAD.size + length
    ending = HEAD.pack(Opcode.FOOTER, FOOTER.size) + FOOTER.pack(start, 0, 0)[: -U32.size]

    def decode(statistics: bytes) -> object:
        summary = statistics + ending
        _written(path, data[:start] + summary + U32.pack(crc32(summary)) + MAGIC)
        return count_records(path)

    return Decoder([blocks[Opcode.STATISTICS]], decode)


def _file(
    path: Path, read: Callable[[Path], object], reseal: Callable[[bytes], bytes] | None = None
) -> Decoder:
    def decode(data: bytes) -> object:
        return read(_written(path, data))

    return Decoder([path.read_bytes()], decode, reseal)


def _checkpoint(folder: Path, name: str) -> Decoder:
    """Return the decoder of a checkpoint file; the manifest's hash of the file is corrected."""
    point = checkpoint.save(folder / name, 5, {"agent": {"w": np.ones(3)}}, {"n": 1})
    path, manifest = point / name, point / "MANIFEST.json"
    fields = json.loads(manifest.read_bytes())

    def decode(data: bytes) -> object:
        _written(path, data)
        if path != manifest:
            digest = hashlib.sha256(data).hexdigest()
            fields["files"][name] = {"bytes": len(data), "sha256": digest}
            _written(manifest, json.dumps(fields).encode())
        return checkpoint.load(point)

    return Decoder([path.read_bytes()], decode)


def _written(path: Path, data: bytes) -> Path:
    path.unlink(missing_ok=True)  # truncating the old content would wait for the disk
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def _decode_stream(data: bytes) -> object:
    return decode_record(decode_frame(data).payload, SPEC)


def _decode_and_write(folder: Path, data: bytes) -> object:
    """Decode a record and check that the learner can write it to its copy of the log."""
    record = decode_record(data, SPEC)
    writer = EpisodeWriter(folder, PART, metadata_of(Key("run", "actor0", 1, 0, 0), SPEC), SPEC)
    try:
        writer.write(record_parts(record), round(record.wall_s * 1e9))
    finally:
        writer.discard()
    return record


def _make_continuation(folder: Path) -> Continuation:
    """Return the object that decides on actor names in a learner."""
    run = RunFolder.create(folder, resolve({"task": "reach"}), datetime(2026, 11, 21))
    return Continuation(run, MetricsWriter(run.path))


def _claim(learner: Continuation, data: bytes) -> object:
    """Check that a claim returns an answer: an exception would end the learner."""
    hello = decode_hello(data)
    try:
        return learner.claim(hello.actor, hello.home, hello.place)
    except BadInput as error:
        raise AssertionError(f"claim: {error}") from error


def _restore(data: bytes) -> object:
    """Check that accepted counters are non-negative integers."""
    progress = restore_progress(parse_object(data, "it"))
    counts = *progress.taken.values(), *progress.trained.values(), progress.version
    assert all(type(count) is int and 0 <= count < 1 << 63 for count in counts), counts
    return progress


def _signed(message: bytes) -> Decoder:
    """Return a decoder that checks that only the signed message verifies."""
    sound = sign(KEY, message)

    def decode(data: bytes) -> object:
        assert (verify(KEY, data) is None) == (data != sound), "a forged message was accepted"
        return None

    return Decoder([sound], decode)


def _read_config(path: Path) -> object:
    return checked(TrainConfig, read_yaml(path))


def _blocks(path: Path) -> tuple[bytes, bytes]:
    """Return the first chunk and the metadata of an episode."""
    bodies: dict[int, bytes] = {}
    with closing(EpisodeFile(path)) as file:
        while (block := file._reader.next_block()) is not None:
            bodies.setdefault(block.opcode, bytes(block.body))
    return bodies[Opcode.CHUNK], bodies[Opcode.METADATA]


def mutants(decoder: Decoder, rng: Random) -> Iterator[bytes]:
    """Yield mutants of the samples, alternately as they are and resealed."""
    for sample in cycle(decoder.samples):
        mutant = mutated(sample, rng)
        yield mutant
        if decoder.reseal is not None:
            yield decoder.reseal(mutated(sample, rng))


def attack(decoders: dict[str, Decoder], count: int, seed: int) -> Counter[str]:
    """Decode `count` mutants; return the number of accepted ones by decoder."""
    rng, accepted = Random(seed), Counter[str]()
    sources = {name: mutants(decoder, rng) for name, decoder in decoders.items()}
    for name in islice(cycle(decoders), count):
        accepted[name] += accepts(name, decoders[name], next(sources[name]))
    return accepted


def accepts(name: str, decoder: Decoder, data: bytes) -> bool:
    """Return whether the bytes decode; fail on anything but a refusal in one line."""
    try:
        decoder.decode(data)
    except BadInput as refusal:
        line = str(refusal)
    except Exception as error:
        raise AssertionError(f"{name}: {error!r} on {data!r}") from error
    else:
        return True
    assert "\n" not in line, f"{name}: {line!r} on {data!r}"
    return False


def test_decoders_accept_their_samples(decoders: dict[str, Decoder]) -> None:
    for decoder in decoders.values():
        for sample in decoder.samples:
            decoder.decode(sample)
            if decoder.reseal is not None:
                assert decoder.reseal(sample) == sample


def test_mutants_decode_or_are_refused_as_bad_input(decoders: dict[str, Decoder]) -> None:
    attack(decoders, SHORT, seed=1)


def test_text_with_replaced_token_decodes_or_is_refused(decoders: dict[str, Decoder]) -> None:
    for name in TEXTS:
        decoder = decoders[name]
        for sample in decoder.samples:
            pairs = product(TOKEN.finditer(sample), WORDS)
            for token, word in islice(pairs, 0, None, EACH):
                mutant = sample[: token.start()] + word + sample[token.end() :]
                accepts(name, decoder, decoder.reseal(mutant) if decoder.reseal else mutant)


@pytest.mark.slow
def test_million_mutants_do_not_leak_memory(decoders: dict[str, Decoder]) -> None:
    process = psutil.Process()
    attack(decoders, LONG // 20, seed=2)  # fills the caches
    before = process.memory_info().rss
    accepted = attack(decoders, LONG - LONG // 20, seed=3)
    growth_mb = (process.memory_info().rss - before) / 1e6
    print(f"{LONG} mutants, {accepted.total()} decoded, memory +{growth_mb:.1f} MB")  # noqa: T201
    assert growth_mb < ALLOWED_GROWTH_MB


@pytest.mark.slow
def test_coverage_guided_mutants_decode_or_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed: pip install atheris")
    command = [sys.executable, "-m", "tests.support.coverage_fuzz", str(tmp_path)]
    options = [f"-max_total_time={COVERAGE_S}", "-max_len=4096", "-rss_limit_mb=4096"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stderr.splitlines()[-1])  # noqa: T201


@settings(deadline=None, max_examples=50)
@given(data=st.binary(max_size=300), place=st.integers(0, 100))
def test_arbitrary_bytes_decode_or_are_refused(
    decoders: dict[str, Decoder], data: bytes, place: int
) -> None:
    for name, decoder in decoders.items():
        for mutant in (data, decoder.samples[0][:place] + data):
            accepts(name, decoder, mutant)
