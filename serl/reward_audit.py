"""How far a reward model can be trusted: its mistakes counted, and the worst of them shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from serl.evaluation import wilson
from serl.reward_data import Samples
from serl.types import Image

_THUMBNAIL_PX = 96
_GAP_PX = 4
_PER_ROW = 8


class Audit(NamedTuple):
    """Mistakes of a model that believes from a threshold on.

    Attributes:
        accuracy: samples told right, and all.
        precision: of those that it believes a success, how many are; and how many it believes.
        recall: of the successes, how many it believes; and how many there are.
        false_positives: rows of the samples believed wrongly, the surest first.
        false_negatives: rows of the successes not believed, the surest first.
    """

    accuracy: tuple[int, int]
    precision: tuple[int, int]
    recall: tuple[int, int]
    false_positives: tuple[int, ...]
    false_negatives: tuple[int, ...]

    def lines(self) -> list[str]:
        """For people."""
        return [
            _line("accuracy", self.accuracy, "samples are told right"),
            _line("precision", self.precision, "of what it takes for success are"),
            _line("recall", self.recall, "of the successes are seen"),
        ]


def audit(
    labels: np.ndarray[Any, np.dtype[np.int64]],
    probabilities: np.ndarray[Any, np.dtype[np.float32]],
    threshold: float,
) -> Audit:
    """Compare labels (N,) with probabilities (N, classes) of which the last is the success."""
    last = probabilities.shape[1] - 1
    sureness = probabilities[:, last]
    believed, true = sureness >= threshold, labels == last
    wrong, missed = np.flatnonzero(believed & ~true), np.flatnonzero(~believed & true)
    hits = int((believed & true).sum())
    return Audit(
        (int((believed == true).sum()), len(labels)),
        (hits, int(believed.sum())),
        (hits, int(true.sum())),
        tuple(wrong[np.argsort(-sureness[wrong], kind="stable")].tolist()),
        tuple(missed[np.argsort(sureness[missed], kind="stable")].tolist()),
    )


def contact_sheet(
    samples: Samples, rows: Sequence[int], sureness: Sequence[float], title: str
) -> Image:
    """The worst mistakes as one picture: views one above the other, with what the model said."""
    from PIL import Image as Pillow
    from PIL import ImageDraw

    from serl.video import font

    names = list(samples.images)
    height = len(names) * _THUMBNAIL_PX + 18
    shown = list(rows)[: 4 * _PER_ROW]
    lines = max(1, -(-len(shown) // _PER_ROW))
    size = (_PER_ROW * (_THUMBNAIL_PX + _GAP_PX) + _GAP_PX, 28 + lines * (height + _GAP_PX))
    sheet = Pillow.new("RGB", size, (247, 248, 249))
    draw = ImageDraw.Draw(sheet)
    text = title if shown else f"{title}: none"
    draw.text((_GAP_PX, 6), text, fill=(40, 46, 52), font=font(13))
    for number, row in enumerate(shown):
        left = _GAP_PX + number % _PER_ROW * (_THUMBNAIL_PX + _GAP_PX)
        top = 28 + number // _PER_ROW * (height + _GAP_PX)
        for place, name in enumerate(names):
            thumbnail = Pillow.fromarray(samples.images[name][row])
            thumbnail = thumbnail.resize((_THUMBNAIL_PX, _THUMBNAIL_PX), Pillow.Resampling.NEAREST)
            sheet.paste(thumbnail, (left, top + place * _THUMBNAIL_PX))
        origin = samples.origins[row].place
        caption = f"{sureness[row]:.3f}  {origin.episode}:{origin.step}"
        draw.text((left, top + height - 16), caption, fill=(90, 98, 106), font=font(10))
    return np.asarray(sheet)


def _line(name: str, counts: tuple[int, int], text: str) -> str:
    part, whole = counts
    if not whole:
        return f"{name:10} -        nothing to count"
    low, high = wilson(part, whole)
    return f"{name:10} {part / whole:6.1%}   {part} of {whole} {text}; 95 % {low:.1%} to {high:.1%}"
