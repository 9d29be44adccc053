"""What a run was started with: the content of `fingerprint.json`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

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


REDACTED: Final = "(redacted)"
_HARMLESS: Final = re.compile(r"True|False|None|torch\.\w+|[-+0-9.,e()\[\] ]{0,40}|inf|nan")
"""Values that are no text: switches, numbers, lists of numbers and dtypes."""
HARMLESS_ARGUMENTS: Final = (
    *("attention_backend", "distributed_backend", "fp8", "fp8_recipe", "lr_decay_style", "normalization", "optimizer"),
    *("moe_router_load_balancing_type", "moe_router_score_function", "moe_token_dispatcher_type"),
    *("position_embedding_type", "recompute_granularity", "recompute_method", "tokenizer_type", "transformer_impl"),
)
"""Arguments of Megatron whose values are from a fixed list, and bear on numbers."""


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


def without_values(fingerprint: Fingerprint) -> Fingerprint:
    """Replace every text that the user gave as an argument, which may be a key, a name or a path."""
    return replace(
        fingerprint,
        arguments={
            name: value if name in HARMLESS_ARGUMENTS else _harmless(value)
            for name, value in fingerprint.arguments.items()
        },
        command_line=tuple(_flag_alone(word) for word in fingerprint.command_line),
    )


def _harmless(value: str) -> str:
    return value if _HARMLESS.fullmatch(value) else REDACTED


def _flag_alone(word: str) -> str:
    """`--lr` and `3` stay as they are; `--key=abc` loses what is behind the sign, and other words are replaced."""
    if not word.startswith("--"):
        return _harmless(word)
    name, sign, value = word.partition("=")
    return f"{name}{sign}{_harmless(value)}" if sign else name
