"""What a run was started with: the content of `fingerprint.json`."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_nanguard.records import SCHEMA_VERSION

FINGERPRINT_NAME = "fingerprint.json"
"""In the directory of the run."""

ENVIRONMENT_ALLOW_LIST = (
    "ASCEND_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "HCCL_DETERMINISTIC",
    "INF_NAN_MODE_ENABLE",
    "INF_NAN_MODE_FORCE_DISABLE",
    "NCCL_ALGO",
    "NCCL_NVLS_ENABLE",
    "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
    "NVTE_FLASH_ATTN",
    "NVTE_FUSED_ATTN",
    "NVTE_UNFUSED_ATTN",
    "OMP_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NPU_ALLOC_CONF",
    "TASK_QUEUE_ENABLE",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
)
"""The environment variables that bear on numbers or on waiting; no other one is ever written to a file.

Our own options, `NANGUARD_*`, are written as settings, not from here.
"""


@dataclass(frozen=True)
class HostChange:
    """An option of the host that the guard changed.

    Attributes:
        option: the option, as the host spells it.
        before: value the user had.
        after: value it has now.
        why: what would go wrong without the change.
    """

    option: str
    before: str
    after: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What a run was started with, enough to distinguish two runs.

    Attributes:
        schema_version: form of this file.
        run_id: name of the run.
        started: start time, UTC, ISO 8601.
        world_size: ranks of the run.
        versions: versions of the packages that matter.
        arguments: the arguments of the run, each as text.
        environment: the variables of the allow-list that are set.
        kernel_backends: which implementation computes what, such as attention.
        host_changes: host options that the guard changed.
        command_line: the host's script and its arguments, those of the guard left out; empty where it has none.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    started: str
    world_size: int
    versions: dict[str, str]
    arguments: dict[str, str]
    environment: dict[str, str]
    kernel_backends: dict[str, str]
    host_changes: tuple[HostChange, ...]
    command_line: tuple[str, ...] = ()
