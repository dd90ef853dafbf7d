from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from serl.agents.resnet import convolve, transform


@pytest.mark.parametrize(
    ("batch", "height", "width", "inputs", "outputs"),
    [(1, 4, 4, 16, 8), (3, 8, 12, 5, 7), (2, 16, 16, 128, 128)],
)
def test_it_is_a_convolution(
    batch: int, height: int, width: int, inputs: int, outputs: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, height, width, inputs, generator=generator)
    kernel = torch.randn(outputs, inputs, 3, 3, generator=generator) / inputs**0.5
    exact = functional.conv2d(x.permute(0, 3, 1, 2).double(), kernel.double(), padding=1)
    result = convolve(x, transform(kernel))
    assert result.is_contiguous()
    torch.testing.assert_close(result, exact.permute(0, 2, 3, 1).float(), rtol=0, atol=2e-4)


def test_it_takes_views() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 6, 4, 8, generator=generator).permute(0, 2, 3, 1)[:, :, :4]
    kernel = transform(torch.randn(3, 6, 3, 3, generator=generator))
    assert torch.equal(convolve(x, kernel), convolve(x.contiguous(), kernel))
