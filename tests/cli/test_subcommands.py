from __future__ import annotations

import pytest

from serl.cli import main as cli


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["reward", "train", "labelled", "--out", "m.safetensors"], "nothing was written"),
        (["encoder", "pretrain", "reach", "--out", "e.safetensors"], "nothing was written"),
        (["eval", "run"], "nothing was written"),
        (["train", "reach"], "everything is stopped and saved"),
        (["record", "reach"], "whole episodes until now are kept"),
    ],
)
def test_an_interrupted_command_says_what_is_left_of_it(words: list[str], kept: str) -> None:
    options, _ = cli._parser().parse_known_args(words)
    assert options.kept == kept
