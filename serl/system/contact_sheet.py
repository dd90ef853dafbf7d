"""Many small pictures on one large one, each with a line below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from serl.types import Image

_THUMBNAIL_PX = 96
_GAP_PX = 4
PER_ROW = 8


def contact_sheet(images: Mapping[str, Image], captions: Sequence[str], title: str) -> Image:
    """One picture of N samples; the views of each lie one above the other.

    Args:
        images: by view, uint8.  # (N, H, W, 3)
        captions: of each sample; "none" is written where there are none.
        title: of the picture.

    Returns:
        uint8 RGB, as wide as any other sheet.  # (H, W, 3)
    """
    from PIL import Image as Pillow
    from PIL import ImageDraw

    from serl.system.video import font

    height = len(images) * _THUMBNAIL_PX + 18
    lines = -(-len(captions) // PER_ROW)
    size = (PER_ROW * (_THUMBNAIL_PX + _GAP_PX) + _GAP_PX, 28 + lines * (height + _GAP_PX))
    sheet = Pillow.new("RGB", size, (247, 248, 249))
    draw = ImageDraw.Draw(sheet)
    text = title if captions else f"{title}: none"
    draw.text((_GAP_PX, 6), text, fill=(40, 46, 52), font=font(13))
    for number, caption in enumerate(captions):
        left = _GAP_PX + number % PER_ROW * (_THUMBNAIL_PX + _GAP_PX)
        top = 28 + number // PER_ROW * (height + _GAP_PX)
        for place, frames in enumerate(images.values()):
            thumbnail = Pillow.fromarray(frames[number])
            thumbnail = thumbnail.resize((_THUMBNAIL_PX, _THUMBNAIL_PX), Pillow.Resampling.NEAREST)
            sheet.paste(thumbnail, (left, top + place * _THUMBNAIL_PX))
        draw.text((left, top + height - 16), caption, fill=(90, 98, 106), font=font(10))
    return np.asarray(sheet)
