"""The work of one step, as the kernels take it: many runs of tokens in one flat batch.

    tokens     a0 a1 a2 | b0 | c0 c1          T = 6 rows, S = 3 segments
    seg_start  0          3    4     6
    kv_slots   9 4 1 2 3 | 7 8 5 | 0 6        context in position order; a segment's own tokens come last
    kv_start   0           5       8     10

Segment a has 2 tokens of context (slots 9 and 4); its token a1 sees slots 9 4 1 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from palmette.torch_later import Array, dtype_name, torch


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens that attend to one list of slots.

    tokens: ids of the run. start: position of its first token. context: slots of what came before, in position order
    (as long as `start` unless a branch was cut out of the positions). slots: where the run's own K and V go.
    outputs: which of its tokens (index in the run) want logits; None: the last one.
    """

    tokens: Sequence[int]
    start: int
    context: Sequence[int]
    slots: Sequence[int]
    outputs: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """One step's tokens, all int64; the reference kernels have them as tensors on their device.

    tokens, positions, slots: [T]; token t's K and V are written to slots[t] before anything is read.
    seg_start: [S+1]; segment s holds the rows seg_start[s]:seg_start[s+1] (at least one).
    kv_start: [S+1], kv_slots: [sum]; segment s attends to kv_slots[kv_start[s]:kv_start[s+1]], in position order with
    its own tokens' slots last; its i-th token sees the first kv_len - q_len + i + 1 of them.
    out_rows: [R]; the rows whose logits are wanted.
    """

    tokens: Array
    positions: Array
    slots: Array
    seg_start: Array
    kv_start: Array
    kv_slots: Array
    out_rows: Array

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> RaggedBatch:
        """The batch of these segments, in their order; logits come in the order of segments and their outputs."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        seg_start = [0]
        kv_start = [0]
        kv_slots: list[int] = []
        out_rows: list[int] = []
        for segment in segments:
            n = len(segment.tokens)
            outputs = (n - 1,) if segment.outputs is None else segment.outputs
            out_rows.extend(len(tokens) + i for i in outputs)
            tokens.extend(segment.tokens)
            positions.extend(range(segment.start, segment.start + n))
            slots.extend(segment.slots)
            kv_slots.extend(segment.context)
            kv_slots.extend(segment.slots)
            seg_start.append(len(tokens))
            kv_start.append(len(kv_slots))

        parts = (tokens, positions, slots, seg_start, kv_start, kv_slots, out_rows)
        return cls(*(np.array(part, np.int64) for part in parts))

    def on(self, device: torch.device | str) -> RaggedBatch:
        """The same with tensors on a device."""
        return RaggedBatch(*(torch.as_tensor(getattr(self, field.name), device=device) for field in fields(self)))

    def problems(self) -> list[str]:
        """What is wrong with the arrays, in words; [] if they are sound. For tests and debugging: it costs a copy."""
        found: list[str] = []
        total, count = len(self.tokens), len(self.seg_start) - 1
        for name in ("tokens", "positions", "slots", "seg_start", "kv_start", "kv_slots", "out_rows"):
            if dtype_name(getattr(self, name).dtype) != "int64":
                found.append(f"{name} is {dtype_name(getattr(self, name).dtype)}, not int64")
        if not len(self.positions) == len(self.slots) == total:
            found.append("tokens, positions and slots differ in length")
        if len(self.kv_start) != count + 1:
            found.append("seg_start and kv_start differ in length")
            return found
        starts, kv_starts = self.seg_start.tolist(), self.kv_start.tolist()
        if starts[0] != 0 or starts[-1] != total:
            found.append("seg_start does not span the tokens")
        if kv_starts[0] != 0 or kv_starts[-1] != len(self.kv_slots):
            found.append("kv_start does not span kv_slots")
        own = self.slots.tolist()
        seen = self.kv_slots.tolist()
        for s in range(count):
            q, kv = starts[s + 1] - starts[s], kv_starts[s + 1] - kv_starts[s]
            if q < 1 or kv < q:
                found.append(f"segment {s} has {q} tokens and {kv} slots")
            elif seen[kv_starts[s + 1] - q : kv_starts[s + 1]] != own[starts[s] : starts[s + 1]]:
                found.append(f"segment {s}: its own slots are not the last of its kv_slots")
        if len(set(own)) != len(own):
            found.append("two tokens write to one slot")
        if any(not 0 <= row < total for row in self.out_rows.tolist()):
            found.append("out_rows names a row that is not there")
        return found
