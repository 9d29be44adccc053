"""One file per Megatron function that is wrapped; the tuple lists them in order."""

from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.patch_points import (
    add_training_args,
    decision,
    forward_backward,
    get_megatron_optimizer,
    get_param_groups,
    grad_norm,
    initialize_model_parallel,
    start_grad_sync,
    validate_result,
    wrap_chunk,
)
from megatron_nanguard.patching.point import line_of

POINTS = (
    add_training_args.POINT,
    initialize_model_parallel.POINT,
    wrap_chunk.POINT,
    get_param_groups.POINT,
    get_megatron_optimizer.POINT,
    forward_backward.POINT,
    start_grad_sync.POINT,
    decision.PREPARE_GRADS,
    decision.OPTIMIZER_STEP,
    grad_norm.CLIP_GRAD_NORM,
    grad_norm.GET_GRAD_NORM,
    validate_result.POINT,
)

ESSENTIAL = ("step", "decision")
"""Groups without which a run is unguarded."""

OTHER_PATCHERS = (
    "mindspeed.patch_utils:MindSpeedPatchesManager.apply_patches",
    "mindspeed.patch_utils:MindSpeedPatchesManager.remove_patches",
)
"""Functions of other packages that patch Megatron: our wrappers are off while one of them runs, and on top afterwards.

Source: mindspeed/patch_utils.py, core_r0.8.0 to core_r0.18.0; the first two lines have no remove_patches
"""


def release_line() -> tuple[int, int] | None:
    """Return major and minor number of the Megatron core that is imported; None where there is none."""
    version = host_program.core_version()
    return None if version is None else line_of(version)
