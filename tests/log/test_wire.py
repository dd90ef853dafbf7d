from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.errors import CorruptData, SpecMismatch
from serl.log import wire
from serl.log.episode_reader import PART
from serl.log.episode_writer import EpisodeWriter, metadata_of
from serl.log.wire import Hello, WireFrame
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.testing.samples import equal, random_observation
from serl.transport import MAX_VERSION
from serl.types import ActionSource, End, EndReason, Key, Observation, Step

IMAGE = ArraySpec(shape=(4, 5, 3), dtype="uint8")
SPEC = Spec(
    task="test",
    observation=ObservationSpec(
        state={"tcp_pose": ArraySpec(shape=(7,)), "grid": ArraySpec(shape=(2, 2))},
        images={"wrist": IMAGE, "front": IMAGE},
    ),
    action=ArraySpec(shape=(3,), low=-1, high=1),
    rate_hz=10,
)
RNG = np.random.default_rng(0)
OBSERVATION = random_observation(SPEC.observation, RNG)
ACTION = np.array([0.1, -1, 1], np.float32)
STEP = Step(
    key=Key("run", "actör", 2**62, 3, 4),
    observation=OBSERVATION,
    requested=ACTION,
    action=-ACTION,
    reward=0.25,
    reward_provenance="truth",
    terminated=False,
    truncated=True,
    source=ActionSource.HUMAN,
    policy_version=5,
    monotonic_s=12.125,
    wall_s=1763715240.123,
)
LAST = End(STEP.key, OBSERVATION, True, EndReason.FAULT, 13.0, 1763715241.0, "a fault\nin words")
HELLO = Hello("run", "actor0", 7, SPEC, "0f" * 16, "host:/runs/run", 3)
FRAME = WireFrame(wire.actor_number("run", "actor0"), 2**64 - 1, 3, b"payload")

ENCODED: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "step": (wire.encode_record(STEP), lambda data: wire.decode_record(data, SPEC)),
    "end": (wire.encode_record(LAST), lambda data: wire.decode_record(data, SPEC)),
    "frame": (b"".join(wire.encode_frame(FRAME)), wire.decode_frame),
    "hello": (wire.encode_hello(HELLO), wire.decode_hello),
}


def test_step_round_trips_exactly() -> None:
    decoded = wire.decode_record(wire.encode_record(STEP), SPEC)
    assert isinstance(decoded, Step)
    assert equal(decoded.observation.state, OBSERVATION.state)
    assert equal(decoded.observation.images, OBSERVATION.images)
    assert list(decoded.observation.state) == ["tcp_pose", "grid"]
    assert np.array_equal(decoded.requested, STEP.requested)
    assert np.array_equal(decoded.action, STEP.action)
    for name in STEP.__slots__:
        if name not in ("observation", "requested", "action"):
            assert getattr(decoded, name) == getattr(STEP, name)
    assert decoded.observation.stamps == OBSERVATION.stamps


def test_end_round_trips_exactly() -> None:
    decoded = wire.decode_record(wire.encode_record(LAST), SPEC)
    assert isinstance(decoded, End)
    assert equal(decoded.observation.state, OBSERVATION.state)
    assert replace(decoded, observation=OBSERVATION) == LAST


def test_random_bit_patterns_round_trip() -> None:
    edges = np.array([0x8000_0000, 1, 0x7F7F_FFFF], np.uint32)  # -0, the smallest, the largest
    bits = np.append(RNG.integers(0, 2**32, 70_000, np.uint32), edges).view(np.float32)
    values = bits[np.isfinite(bits)]
    spec = SPEC.model_copy(
        update={"observation": ObservationSpec(state={"x": ArraySpec(shape=values.shape)})}
    )
    # In slices, because a record's JSON text has bounded size.
    for part in np.array_split(values, 8):
        observation = Observation({"x": part})
        small = ObservationSpec(state={"x": ArraySpec(shape=part.shape)})
        data = wire.encode_record(replace(LAST, observation=observation))
        decoded = wire.decode_record(data, spec.model_copy(update={"observation": small}))
        assert decoded.observation.state["x"].tobytes() == part.tobytes()


def test_any_array_name_round_trips() -> None:
    names = ['"', "%", "%s", "\\", "ä b", ""]
    state = {name: ArraySpec(shape=(2,)) for name in names}
    spec = SPEC.model_copy(update={"observation": ObservationSpec(state=state)})
    observation = random_observation(spec.observation, RNG)
    data = wire.encode_record(replace(LAST, observation=observation))
    assert equal(wire.decode_record(data, spec).observation.state, observation.state)


def test_overlong_or_invalid_reason_is_shortened() -> None:
    for reason in ("\ud800 lost", "x" * 5_000_000):
        decoded = wire.decode_record(wire.encode_record(replace(LAST, fault=reason)), SPEC)
        assert isinstance(decoded, End)
        assert decoded.text[-4:] == reason[-4:]
        assert len(decoded.text) <= 1000


def test_decoded_images_are_views_and_name_order_is_irrelevant() -> None:
    reordered = dict(reversed(list(OBSERVATION.images.items())))
    data = wire.encode_record(replace(LAST, observation=replace(OBSERVATION, images=reordered)))
    assert data == wire.encode_record(LAST)
    image = wire.decode_record(data, SPEC).observation.images["front"]
    assert np.shares_memory(image, np.frombuffer(data, np.uint8))
    assert not image.flags.writeable


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_value_is_not_encoded(value: float) -> None:
    bad = np.array([value, 0, 0, 0, 0, 0, 0], np.float32)
    state = {**OBSERVATION.state, "tcp_pose": bad}
    for record in (
        replace(STEP, observation=replace(OBSERVATION, state=state)),
        replace(STEP, action=bad),
        replace(STEP, reward=value),
        replace(LAST, wall_s=value),
        replace(LAST, observation=replace(OBSERVATION, stamps={"robot": value})),
    ):
        with pytest.raises(SpecMismatch):
            wire.encode_record(record)


def test_record_too_large_to_be_read_is_not_encoded() -> None:
    large = replace(OBSERVATION, state={"depth": np.full((300, 300), -1.0, np.float32)})
    for record in (replace(STEP, observation=large), replace(LAST, observation=large)):
        with pytest.raises(SpecMismatch, match="bytes of numbers and text, allowed 1048576"):
            wire.encode_record(record)


def edit_step(change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return the encoded step with a change in its JSON text."""
    data = wire.encode_record(STEP)
    (length,) = struct.unpack_from("<I", data, 8)
    fields = json.loads(data[12 : 12 + length])
    change(fields)
    text = json.dumps(fields).encode()
    return data[:8] + struct.pack("<I", len(text)) + text + data[12 + length :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("reward"), "fields"),
        (lambda f: f.update(extra=1), "fields"),
        (lambda f: f["key"].update(extra=1), "key"),
        (lambda f: f["key"].update(index=-1), "index"),
        (lambda f: f["key"].update(epoch=2**63), "epoch"),
        (lambda f: f["key"].update(run="\ud800"), "run"),
        (lambda f: f.update(reward=True), "reward"),
        (lambda f: f.update(reward=float("nan")), "NaN"),
        (lambda f: f.update(terminated=0), "terminated"),
        (lambda f: f.update(source="ghost"), "policy.*human.*script"),
        (lambda f: f.update(stamps={"robot": "now"}), "stamps"),
        (lambda f: f.update(action=[0.0, 0.0]), "action"),
        (lambda f: f.update(action=[0.0, 0.0, 1.5]), "above 1"),
        (lambda f: f.update(action=[0.0, 0.0, "0"]), "action"),
        (lambda f: f.update(action=[0.0, 0.0, False]), "action"),
        (lambda f: f.update(action=[0.0, 0.0, 10**400]), "action"),
        (lambda f: f["state"].update(tcp_pose=[1e300] * 7), "not finite"),
        (lambda f: f["state"].pop("grid"), "state: expected"),
        (lambda f: f["images"].update(front=[5, 4, 3]), r"image front: expected \[4, 5, 3\]"),
        (lambda f: f["images"].pop("front"), "images: expected"),
        (lambda f: f.update(wall_s=-1.0), "wall_s: expected a time since 1970, got -1"),
        (lambda f: f.update(wall_s=2.0**32), "wall_s"),
        (lambda f: f.update(policy_version=MAX_VERSION + 1), "policy_version"),
        (lambda f: f.update(reward_provenance="x" * 1001), "reward_provenance: 1001 characters"),
        (lambda f: f["stamps"].update({"x" * 1001: 0.0}), "stamp: 1001 characters"),
        (lambda f: f.update(stamps=dict.fromkeys(map(str, range(65)), 0.0)), "stamps: 65"),
    ],
)
def test_invalid_record_field_is_refused_by_name(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    wire.decode_record(edit_step(lambda fields: None), SPEC)
    with pytest.raises((CorruptData, SpecMismatch), match=message) as refusal:
        wire.decode_record(edit_step(change), SPEC)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("wall_s", [0.0, 0.5, np.nextafter(2.0**32, 0)])
def test_every_accepted_time_can_be_logged(wall_s: float, tmp_path: Path) -> None:
    data = edit_step(lambda fields: fields.update(wall_s=wall_s))
    record = wire.decode_record(data, SPEC)
    writer = EpisodeWriter(tmp_path, PART, metadata_of(record.key, SPEC), SPEC)
    writer.write(wire.record_parts(record), round(record.wall_s * 1e9))
    writer.close()


def test_overlong_reason_is_refused() -> None:
    data = wire.encode_record(replace(LAST, fault="x" * 1000))
    (length,) = struct.unpack_from("<I", data, 8)
    longer = data[:8] + struct.pack("<I", length + 1) + data[12:].replace(b"xxx", b"xxxx", 1)
    with pytest.raises(CorruptData, match="reason: 1001 characters, allowed 1000"):
        wire.decode_record(longer, SPEC)


@pytest.mark.parametrize("name", ENCODED)
def test_truncated_or_extended_bytes_are_refused(name: str) -> None:
    data, decode = ENCODED[name]
    for cut in range(len(data)):
        with pytest.raises(CorruptData):
            decode(data[:cut])
    with pytest.raises(CorruptData):
        decode(data + b"\0")


def test_frame_round_trips_exactly() -> None:
    decoded = wire.decode_frame(b"".join(wire.encode_frame(FRAME)))
    assert decoded == FRAME._replace(payload=decoded.payload)
    assert bytes(decoded.payload) == FRAME.payload


def test_actors_of_different_runs_have_different_numbers() -> None:
    names = [("run", "a"), ("run", "b"), ("runa", ""), ("ru", "na")]
    assert len({wire.actor_number(*name) for name in names}) == 4


def test_hello_round_trips_and_shows_spec_difference() -> None:
    assert wire.decode_hello(wire.encode_hello(HELLO)) == HELLO
    other = SPEC.model_copy(update={"rate_hz": 20.0})
    decoded = wire.decode_hello(wire.encode_hello(HELLO._replace(spec=other)))
    assert decoded.spec.difference(SPEC) == "rate_hz: 20.0 != 10.0"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\n", "x" * 65, "\u00e4"])
def test_hello_with_unsafe_name_is_refused(name: str) -> None:
    for field, hello in (("run", HELLO._replace(run=name)), ("actor", HELLO._replace(actor=name))):
        with pytest.raises(CorruptData, match=f"hello {field}") as refusal:
            wire.decode_hello(wire.encode_hello(hello))
        assert "\n" not in str(refusal.value)


def test_hello_place_is_escaped() -> None:
    data = wire.encode_hello(HELLO._replace(place="\x1b[2Jho\nst:\u202e/r\u00fcns x"))
    assert wire.decode_hello(data).place == r"\x1b[2Jho\nst:\u202e/r" "\u00fcns x"


def test_hello_of_another_version_is_refused() -> None:
    data = wire.encode_hello(HELLO).replace(b'"format":3', b'"format":1')
    with pytest.raises(CorruptData, match="format 1, this version speaks 3"):
        wire.decode_hello(data)


@pytest.mark.parametrize("home", ["", "0f", "0F" * 16, "../" * 11, "0f" * 17])
def test_hello_with_invalid_home_is_refused(home: str) -> None:
    data = wire.encode_hello(HELLO._replace(home=home))
    with pytest.raises(CorruptData, match="hello home: expected 32 hex digits"):
        wire.decode_hello(data)


def test_oversized_record_is_refused_before_allocation() -> None:
    head = struct.pack("<4sHHI", b"SRLR", 1, 1, 2**32 - 1)
    nested = b"[" * 100_000
    tracemalloc.start()
    for decode, data in (
        (ENCODED["step"][1], head + b"{}"),
        (ENCODED["step"][1], struct.pack("<4sHHI", b"SRLR", 1, 1, len(nested)) + nested),
        (ENCODED["hello"][1], nested),
    ):
        with pytest.raises(CorruptData):
            decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
