"""Statistics of a LeRobotDataset: of each episode, and of all from those of the episodes.

Minimum, maximum, mean and standard deviation of all are exact; a quantile is the mean of the
episodes' quantiles. No rows are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from serl.datasets.serl_import import Values

Statistics = Mapping[str, Mapping[str, Values]]
"""Minimum, maximum, mean, standard deviation, quantiles and count of each column and camera."""

_QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
_SAMPLES = 50  # images of an episode and camera that enter the statistics


def episode_statistics(columns: Mapping[str, Values], films: Mapping[str, Values]) -> Statistics:
    """Return the statistics of an episode.

    Args:
        columns: columns of its rows; those of texts are left out.  # (N, ...)
        films: images of its cameras, of which some enter.  # (N, H, W, 3)
    """
    numbers = {
        name: values.reshape(len(values), -1)
        for name, values in columns.items()
        if values.dtype.kind in "fib"
    }
    pixels = {
        name: images[:: -(-len(images) // _SAMPLES), ::4, ::4].reshape(-1, 3) / np.float32(255)
        for name, images in films.items()
    }
    found = {}
    for name, values in {**numbers, **pixels}.items():
        rows = values.astype(np.float64)
        each = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
        each |= {f"q{round(q * 100):02d}": np.quantile(rows, q, axis=0) for q in _QUANTILES}
        shape = (3, 1, 1) if name in pixels else (-1,)
        found[name] = {key: value.reshape(shape) for key, value in each.items()}
        found[name]["count"] = np.array([len(rows)])
    return found


def as_columns(stats: Statistics) -> dict[str, Any]:
    """Return the statistics of an episode as columns of the table of episodes."""
    return {
        f"stats/{name}/{key}": value.tolist()
        for name, each in stats.items()
        for key, value in each.items()
    }


def total_statistics(stats: Sequence[Statistics]) -> dict[str, Any]:
    """Return the statistics of all episodes, for JSON."""
    total: dict[str, Any] = {}
    for name in stats[0]:
        parts = {key: np.stack([each[name][key] for each in stats]) for key in stats[0][name]}
        weights = parts["count"].ravel() / parts["count"].sum()
        found = {
            key: np.tensordot(weights, values, 1)
            for key, values in parts.items()
            if key not in ("min", "max", "std", "count")
        }
        spread = np.square(parts["std"]) + np.square(parts["mean"] - found["mean"])
        found |= {"min": parts["min"].min(0), "max": parts["max"].max(0)}
        found |= {"std": np.sqrt(np.tensordot(weights, spread, 1)), "count": parts["count"].sum(0)}
        total[name] = {key: value.tolist() for key, value in found.items()}
    return total
