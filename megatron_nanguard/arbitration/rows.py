"""Cut a call to the rows that matter, for operators that work on each row of the first dim by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from megatron_nanguard.records.suspect_call import Argument, RowCut

MAX_BAD_ROWS = 16
NUM_GOOD_ROWS = 4

ROWS_OF: Mapping[str, frozenset[str]] = {
    "aten::mm": frozenset({"self"}),
    "aten::addmm": frozenset({"self", "mat1"}),
    "aten::bmm": frozenset({"self", "mat2"}),
    "aten::baddbmm": frozenset({"self", "batch1", "batch2"}),
    "aten::embedding": frozenset({"indices"}),
    "aten::_softmax": frozenset({"self"}),
    "aten::_log_softmax": frozenset({"self"}),
    "aten::_softmax_backward_data": frozenset({"grad_output", "output"}),
    "aten::_log_softmax_backward_data": frozenset({"grad_output", "output"}),
    "aten::native_layer_norm": frozenset({"input"}),
    "aten::_fused_rms_norm": frozenset({"input"}),
    "aten::_to_copy": frozenset({"self"}),
    "aten::clone": frozenset({"self"}),
    "aten::copy_": frozenset({"self", "src"}),
    "aten::gelu": frozenset({"self"}),
}
"""Operators that work by rows and are not tagged pointwise, with the arguments whose first dim is that of the rows."""


def row_arguments(
    func: OpOverload, args: Sequence[Argument], tensors: Mapping[str, Tensor], outputs: Sequence[Tensor]
) -> set[str]:
    """Names of the tensors to cut; empty where rows depend on each other or may do so."""
    if not outputs or any(output.dim() == 0 for output in outputs):
        return set()
    if torch.Tag.nondeterministic_seeded in func.tags or not _spares_first_dim(args, tensors):
        return set()
    num_rows = outputs[0].shape[0]
    if any(output.shape[0] != num_rows for output in outputs):
        return set()
    named = ROWS_OF.get(func._schema.name)
    if named is None and torch.Tag.pointwise not in func.tags:
        return set()
    if named is not None:
        candidates = {name: tensor for name, tensor in tensors.items() if name in named and tensor.dim() > 1}
    else:  # a tensor of fewer dims is broadcast along the rows, even if its first dim has their number
        candidates = {name: tensor for name, tensor in tensors.items() if tensor.dim() == outputs[0].dim()}
    return {name for name, tensor in candidates.items() if tensor.shape[0] == num_rows}


def _spares_first_dim(args: Sequence[Argument], tensors: Mapping[str, Tensor]) -> bool:
    """Whether softmax or a norm works along other dims than the first."""
    found = {argument.name: argument for argument in args}
    num_dims = max((tensor.dim() for tensor in tensors.values()), default=0)
    if "normalized_shape" in found and len(found["normalized_shape"].values) >= num_dims:
        return False
    if "dim" not in found or found["dim"].is_list or found["dim"].values[0].kind != "int":
        return True
    return int(found["dim"].values[0].text) % max(num_dims, 1) != 0


def choose_rows(outputs: Sequence[Tensor]) -> RowCut | None:
    """Choose up to 16 bad rows and 4 good ones; None when the call is small or has no bad row.

    Sync: waits for the device.
    """
    num_rows = outputs[0].shape[0]
    if num_rows <= MAX_BAD_ROWS + NUM_GOOD_ROWS:
        return None
    is_bad = torch.zeros(num_rows, dtype=torch.bool)
    for output in outputs:
        if output.is_floating_point():
            values = output.float() if output.element_size() == 1 else output
            is_bad |= (~torch.isfinite(values)).reshape(num_rows, -1).any(dim=1).cpu()
    bad, good = torch.nonzero(is_bad).flatten().tolist(), torch.nonzero(~is_bad).flatten().tolist()
    if not bad:
        return None
    return RowCut(tuple(sorted(bad[:MAX_BAD_ROWS] + good[:NUM_GOOD_ROWS])), num_rows)


def cut(tensor: Tensor, rows: RowCut) -> Tensor:
    """Take the chosen rows of one tensor."""
    return tensor.detach().index_select(0, torch.tensor(rows.rows, device=tensor.device))
