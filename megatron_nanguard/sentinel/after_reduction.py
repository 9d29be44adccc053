"""Norms of what the optimizer is about to consume: one per contiguous piece."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from megatron_nanguard.megatron_api.pieces import Piece, reduced_pieces
from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.sentinel.norms import norms_of


class AfterReduction:
    """The pieces of this rank and their norms at the decision point."""

    def __init__(self, chunks: Sequence[ModelChunk]) -> None:
        self._chunks = chunks
        self.pieces: list[Piece] = []
        self.norms: Tensor | None = None

    def look(self) -> None:
        """Take the norms.

        Sync: none; a constant number of kernels.
        """
        self.pieces = reduced_pieces(self._chunks)
        data = [piece.data for piece in self.pieces]
        self.norms = norms_of(data) if data else None
