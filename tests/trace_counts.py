"""Requests, sectors and wavefronts of a trace, counted one by one: an oracle of the analysis."""

from __future__ import annotations

import numpy as np
from simt_traces import WARP, Key, Trace


def distinct(rows: np.ndarray) -> np.ndarray:
    """Number of distinct values of each row, but for -1."""
    ordered = np.sort(rows, axis=1)
    fresh = np.ones(ordered.shape, bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return (fresh & (ordered >= 0)).sum(axis=1)


def count(trace: Trace) -> dict[Key, dict[str, int]]:
    """Requests, lanes, and sectors or wavefronts of each instruction, request by request."""
    found = {}
    for key, parts in trace.requests.items():
        lanes = np.concatenate(parts)
        if not len(lanes):
            continue
        times = np.concatenate(trace.times[key])
        figures = {"requests": int(times.sum()), "lanes": int((lanes >= 0).sum(axis=1) @ times)}
        if key.space == "global":
            places = lanes // 32
            if key.instruction == "cp.async" and key.bits == 128:  # see gmem.analyze
                target = np.concatenate(trace.targets[key]) // 32
                places = lanes // 128 * 4096 + target
            figures["sectors"] = int(distinct(np.where(lanes < 0, -1, places)) @ times)
            step = np.arange(0, key.bits // 8, 2)
            halves = np.where(lanes[..., None] < 0, -1, lanes[..., None] + step)
            figures["bytes"] = 2 * int(distinct(halves.reshape(len(lanes), -1)) @ times)
        else:
            figures["wavefronts"] = int(wavefronts(key, lanes) @ times)
        found[key] = figures
    return found


def wavefronts(key: Key, lanes: np.ndarray) -> np.ndarray:
    """Phases of 32, 16 or 8 lanes; of each the most words that any bank has to serve."""
    lane, together = np.arange(WARP), min(WARP, 1024 // key.bits)
    pairs = np.zeros(
        len(lanes), bool
    )  # neighbours share vectors, two phases go as one: smem.joined
    if key.direction == "load" and key.bits > 32:
        for other in (lanes[:, lane ^ 1], lanes[:, lane ^ 2]):
            pairs |= ((lanes < 0) | (other < 0) | (lanes == other)).all(axis=1)
    total = np.zeros(len(lanes), int)
    for which, group in ((~pairs, together), (pairs, 2 * together)):
        if not which.any():
            continue
        chosen = lanes[which][..., None]
        words = np.where(chosen < 0, -1, chosen // 4 + np.arange(max(1, key.bits // 32)))
        words = words.reshape(-1, group * words.shape[-1])
        in_bank = [distinct(np.where(words % 32 == bank, words, -1)) for bank in range(32)]
        total[which] = np.max(in_bank, axis=0).reshape(-1, WARP // group).sum(axis=1)
    return total
