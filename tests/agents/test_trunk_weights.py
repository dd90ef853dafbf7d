"""Import of SERL's trunk; any other file is refused with the name of the difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from serl.agents import trunk_weights
from serl.agents.config import SACConfig
from serl.agents.trunk_weights import (
    SHAPES,
    default_path,
    import_trunk,
    load_trunk,
    read_serl_trunk,
    with_trunk,
)
from serl.cli import main as cli
from serl.errors import BadInput, CorruptData, SerlError, SpecMismatch
from serl.runs.settings import run_settings
from serl.system.files import digest_of

from ..support.pickled import pickled_parameters
from .resnet10_reference import stand_in

TREE = stand_in()
HEAD = {"kernel": np.zeros((512, 10), np.float32), "bias": np.zeros(10, np.float32)}


@pytest.fixture
def trunk(trunk_file: Path) -> Path:
    return trunk_file


@pytest.fixture
def source(trunk_file: Path) -> Path:
    return trunk_file.with_name("resnet10_params.pkl")


def written(path: Path, tree: Any) -> Path:
    path.write_bytes(pickled_parameters(tree))
    return path


def without(*names: str) -> dict[str, Any]:
    """Return the tree without one layer or without one layer of a block."""
    *above, last = names
    tree = TREE[above[0]] if above else TREE
    rest = {name: layer for name, layer in tree.items() if name != last}
    return TREE | {above[0]: rest} if above else rest


def block(number: int, **layers: Any) -> dict[str, Any]:
    """Return the tree with replaced layers in one block."""
    return TREE | {f"ResNetBlock_{number}": TREE[f"ResNetBlock_{number}"] | layers}


def test_imported_kernels_are_transposed_and_norms_unchanged(source: Path) -> None:
    tensors = read_serl_trunk(source).tensors
    assert {name: array.shape for name, array in tensors.items()} == dict(SHAPES)
    assert sum(array.size for array in tensors.values()) == 4_905_792
    kernel = TREE["ResNetBlock_2"]["conv_proj"]["kernel"]  # (H, W, I, O)
    assert np.array_equal(tensors["blocks.2.shortcut.weight"][:, :, 0, 0], kernel[0, 0].T)
    stem = TREE["conv_init"]["kernel"]
    assert tensors["stem.weight"][5, 1, 2, 3] == stem[2, 3, 1, 5]
    for name, layer in (("norm0", "MyGroupNorm_0"), ("shortcut_norm", "norm_proj")):
        norm = TREE["ResNetBlock_3"][layer]
        assert np.array_equal(tensors[f"blocks.3.{name}.weight"], norm["scale"])
        assert np.array_equal(tensors[f"blocks.3.{name}.bias"], norm["bias"])


def test_trunk_file_round_trip_is_exact(source: Path, trunk: Path) -> None:
    first, second = read_serl_trunk(source), load_trunk(trunk)
    assert (first.source, first.sha256) == (second.source, second.sha256)
    assert all(np.array_equal(first.tensors[name], second.tensors[name]) for name in SHAPES)


@pytest.mark.parametrize(
    "tree",
    [
        TREE | {"output_head": HEAD},
        {"params": TREE},
        {"params": TREE | {"output_head": HEAD}, "batch_stats": {}},
        {"params": {"pretrained_encoder": TREE}},
    ],
    ids=["classifier", "params", "params and more", "encoder"],
)
def test_trunk_is_found_inside_larger_parameter_trees(
    source: Path, tmp_path: Path, tree: Any
) -> None:
    found = read_serl_trunk(written(tmp_path / "more.pkl", tree))
    assert found.sha256 == read_serl_trunk(source).sha256


CONV = TREE["ResNetBlock_1"]["Conv_0"]["kernel"]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (without("conv_init"), r"missing \['conv_init/kernel'\], unknown \[\]"),
        (without("ResNetBlock_1", "norm_proj"), r"missing \['ResNetBlock_1/norm_proj/bias', "),
        (TREE | {"fc": HEAD}, r"missing \[\], unknown \['fc/bias', 'fc/kernel'\]"),
        (block(0, conv_proj={"kernel": CONV}), r"unknown \['ResNetBlock_0/conv_proj/kernel'\]"),
        (
            block(1, Conv_0={"kernel": CONV.transpose(3, 2, 0, 1)}),
            r"ResNetBlock_1/Conv_0/kernel: expected float32\[3, 3, 64, 128\], "
            r"found float32\[128, 64, 3, 3\]",
        ),
        (
            block(1, Conv_0={"kernel": CONV.astype(np.float64)}),
            r"ResNetBlock_1/Conv_0/kernel: expected float32\[3, 3, 64, 128\], found float64",
        ),
        (block(1, Conv_0={"kernel": None}), "ResNetBlock_1/Conv_0/kernel: .* found NoneType"),
        (block(1, Conv_0={"kernel": CONV * np.nan}), "ResNetBlock_1/Conv_0/kernel: not finite"),
        ({"weights": TREE}, r"missing \['ResNetBlock_0/Conv_0/kernel', .*unknown \['weights/Res"),
        (None, "expected a dict of layers, found NoneType"),
        ({"params": None}, "expected a dict of layers, found NoneType"),
    ],
)
def test_wrong_parameter_tree_is_refused_by_name(tmp_path: Path, tree: Any, message: str) -> None:
    path = written(tmp_path / "other.pkl", tree)
    with pytest.raises(BadInput, match=message) as refusal:
        import_trunk(path, tmp_path / "out")
    line = str(refusal.value)
    assert line.startswith(f"{path}")
    assert "\n" not in line
    assert len(line) < 800
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_or_malicious_pickle_is_refused(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "resnet10_params.pkl"
    path.write_bytes(
        source.read_bytes()[:1_000_000]
    )  # truncated, like a copy in a public repository
    with pytest.raises(CorruptData, match=r"resnet10_params\.pkl: EOFError"):
        read_serl_trunk(path)
    path.write_bytes(b"\x80\x04cos\nsystem\n\x8c\x02id\x85R.")
    with pytest.raises(CorruptData, match=r"the name 'os\.system'"):
        read_serl_trunk(path)
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read_serl_trunk(tmp_path / "absent")


def test_import_repeats_for_same_trunk_and_refuses_another(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folders" / "trunk.safetensors"
    first = import_trunk(source, out)
    data, changed_ns = out.read_bytes(), out.stat().st_mtime_ns
    wrapped = written(tmp_path / "wrapped.pkl", {"params": TREE})
    assert import_trunk(wrapped, out).sha256 == first.sha256
    other = written(tmp_path / "other.pkl", stand_in(seed=11))
    with pytest.raises(BadInput, match=r"trunk\.safetensors: holds another trunk"):
        import_trunk(other, out)
    assert (out.read_bytes(), out.stat().st_mtime_ns) == (data, changed_ns)


def test_import_command_prints_progress_before_output_path(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.main(["encoder", "import", str(source)]) == 0
    printed = "".join(capsys.readouterr())
    summary = f"trunk: {tmp_path}/serl/resnet10.safetensors\nparameters: 4,905,792\n"
    assert printed.index("converting") < printed.index(summary)


def test_import_does_not_overwrite_other_files(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "photo.jpg"
    out.write_text("of a cat")
    with pytest.raises(BadInput, match=r"photo\.jpg"):
        import_trunk(source, out)
    assert out.read_text() == "of a cat"
    with pytest.raises(BadInput, match="is a folder"):
        import_trunk(source, tmp_path)


def test_import_reports_write_errors(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SerlError, match="cannot be written: "):
        import_trunk(source, tmp_path / "file" / "trunk.safetensors")


Tensors = dict[str, np.ndarray[Any, Any]]
Metadata = dict[str, str]


def first_value(value: float) -> Callable[[Tensors, Metadata], object]:
    return lambda tensors, _: tensors["stem_norm.bias"].put(0, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, _: t.pop("stem.weight"), r"missing \['stem.weight'\], unknown \[\]"),
        (lambda t, _: t.update(more=np.zeros(1)), r"missing \[\], unknown \['more'\]"),
        (
            lambda t, _: t.update({"stem_norm.bias": np.zeros(65, np.float32)}),
            r"stem_norm\.bias: expected float32\[64\], found float32\[65\]",
        ),
        (
            lambda t, _: t.update({"stem_norm.bias": np.zeros(64, np.float16)}),
            r"stem_norm\.bias: expected float32\[64\], found float16\[64\]",
        ),
        (first_value(np.nan), r"stem_norm\.bias: not finite"),
        (first_value(1.25), "the sha256 does not match"),
        (lambda _, m: m.update(sha256="0" * 64), "the sha256 does not match"),
        (lambda _, m: m.update(format="2"), "format '2', this version reads"),
        (lambda _, m: m.clear(), "format None, this version reads"),
        (lambda _, m: m.pop("source"), "expected the fields"),
    ],
)
def test_modified_trunk_file_is_refused(
    trunk: Path, tmp_path: Path, change: Callable[[Tensors, Metadata], object], message: str
) -> None:
    weights = load_trunk(trunk)
    tensors = {name: np.array(array) for name, array in weights.tensors.items()}
    metadata = {
        "format": trunk_weights.FORMAT,
        "source": weights.source,
        "sha256": weights.sha256,
    }
    path = tmp_path / "changed.safetensors"
    change(tensors, metadata)
    safetensors.numpy.save_file(tensors, path, metadata)
    with pytest.raises((CorruptData, SpecMismatch), match=message) as refusal:
        load_trunk(path)
    assert "\n" not in str(refusal.value)


def test_truncated_or_oversized_trunk_file_is_refused(trunk: Path, tmp_path: Path) -> None:
    data = trunk.read_bytes()
    path = tmp_path / "cut.safetensors"
    for cut in (0, 7, 8, 100, 5000, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(BadInput, match=r"cut\.safetensors: "):
            load_trunk(path)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptData, match="1099511627776 bytes, allowed"):
        load_trunk(path)


def test_default_trunk_path_is_in_user_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for set_to, folder in ((str(tmp_path / "x"), "x"), ("relative", ".cache"), ("", ".cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", set_to)
        assert default_path() == tmp_path / folder / "serl" / "resnet10.safetensors"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_path() == tmp_path / ".cache" / "serl" / "resnet10.safetensors"


def test_summary_recognises_serl_release(source: Path) -> None:
    weights = read_serl_trunk(source)
    lines = weights.summary().splitlines()
    assert lines[:2] == ["parameters: 4,905,792", f"sha256: {weights.sha256}"]
    assert lines[2] == f"source: not SERL's release, sha256 {weights.source}"
    released = weights._replace(source=trunk_weights.RELEASED_SHA256)
    assert "source: as SERL released it, " in released.summary()


def test_with_trunk_resolves_trunk_path_and_digest(
    trunk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(trunk.parent)
    settled = with_trunk(SACConfig(encoder="resnet10", trunk=Path(trunk.name)))
    assert (settled.trunk, settled.trunk_sha256) == (trunk.resolve(), digest_of(trunk))
    assert with_trunk(SACConfig()) == SACConfig()
    assert not caplog.messages
    assert with_trunk(SACConfig(encoder="resnet10")).encoder == "small"
    (line,) = caplog.messages
    assert str(default_path()) in line
    with pytest.raises(BadInput, match=r"agent\.trunk typo: no such file"):
        with_trunk(SACConfig(encoder="resnet10", trunk=Path("typo")))
    with pytest.raises(BadInput, match=r"agent\.trunk: .* small .* \(--agent\.encoder resnet10\)"):
        with_trunk(SACConfig(trunk=trunk))


def test_mistyped_trunk_path_is_refused_before_training(caplog: pytest.LogCaptureFixture) -> None:
    named = {"observe": "pixels", "agent": {"encoder": "resnet10", "trunk": "typo"}}
    with pytest.raises(BadInput, match="typo: no such file; expected") as refused:
        run_settings("pick_cube", {}, named)
    assert "\n" not in str(refused.value)
    assert not caplog.messages, "one line"
