"""The eight layouts that everything is tried on, as arguments of the pretrain script.

rank = tp + TP * (cp + CP * (dp + DP * pp)); data parallelism takes what the others leave of `nproc`.

    A   TP2 PP2 DP2, bf16, plain DDP (AR: the same with full recompute)
    B   TP2 DP4, sequence parallel, distributed optimizer, both overlaps, bf16
    C   MoE EP2 DP4, all-to-all, distributed optimizer, bf16
    D1  one rank, fp32; D2: DP2
    E   PP4 VPP2 DP2, bf16
    F   MoE EP2 PP2 DP4 (expert DP2), router bias, bf16
    G   A in fp16 with a dynamic loss scale
    H   CP2 TP2 DP2, bf16
"""

from __future__ import annotations

from dataclasses import dataclass, replace

COMMON = (
    *("--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32", "--max-position-embeddings", "32"),
    *("--vocab-size", "128", "--make-vocab-size-divisible-by", "8", "--tokenizer-type", "NullTokenizer"),
    *("--mock-data", "--micro-batch-size", "2", "--train-iters", "3", "--eval-iters", "0", "--eval-interval", "1000"),
    *("--lr", "1e-3", "--min-lr", "1e-4", "--lr-decay-style", "constant", "--weight-decay", "0.01"),
    *("--clip-grad", "1.0", "--transformer-impl", "local", "--no-persist-layer-norm"),
    *("--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion", "--no-bias-gelu-fusion"),
    *("--no-bias-dropout-fusion", "--no-rope-fusion", "--num-workers", "0", "--log-interval", "1"),
    *("--distributed-timeout-minutes", "2"),
)
NO_DROPOUT = ("--hidden-dropout", "0", "--attention-dropout", "0")
DISTRIBUTED_OPTIMIZER = ("--use-distributed-optimizer",)
OVERLAP = ("--overlap-grad-reduce", "--overlap-param-gather")
FULL_RECOMPUTE = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
MOE = (
    *("--num-experts", "8", "--moe-router-topk", "2", "--moe-router-load-balancing-type", "aux_loss"),
    *("--moe-aux-loss-coeff", "1e-2", "--moe-token-dispatcher-type", "alltoall", "--disable-bias-linear"),
)
ROUTER_BIAS = ("--moe-router-enable-expert-bias", "--moe-router-score-function", "sigmoid")
FP16 = ("--fp16", "--initial-loss-scale", "65536", "--loss-scale-window", "2")


@dataclass(frozen=True)
class Layout:
    """How many ranks, and every argument.

    Attributes:
        nproc: World size.
        args: Complete command line of the pretrain script: 3 steps, at least 4 micro-batches each.
        tp: Tensor parallel size.
        cp: Context parallel size.
        ep: Expert parallel size.
        pp: Pipeline parallel size.
    """

    nproc: int
    args: tuple[str, ...]
    tp: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1

    @property
    def dp(self) -> int:
        """Data parallel size, context parallelism not counted."""
        return self.nproc // (self.tp * self.cp * self.pp)

    def plus(self, *more: str) -> Layout:
        """The same with further arguments; argparse takes the last one of an option."""
        return replace(self, args=(*self.args, *more))


def _layout(
    nproc: int, layers: int, global_batch: int, *more: str, tp: int = 1, cp: int = 1, ep: int = 1, pp: int = 1
) -> Layout:
    sizes = {
        "--tensor-model-parallel-size": tp,
        "--context-parallel-size": cp,
        "--expert-model-parallel-size": ep,
        "--pipeline-model-parallel-size": pp,
    }
    parallel = [word for option, size in sizes.items() if size > 1 for word in (option, str(size))]
    batch = ("--num-layers", str(layers), "--global-batch-size", str(global_batch))
    return Layout(nproc, (*COMMON, *batch, *parallel, *more), tp=tp, cp=cp, ep=ep, pp=pp)


LAYOUTS = {
    "A": _layout(8, 4, 16, "--bf16", tp=2, pp=2),
    "AR": _layout(8, 4, 16, "--bf16", *FULL_RECOMPUTE, tp=2, pp=2),
    "B": _layout(8, 4, 32, "--sequence-parallel", *DISTRIBUTED_OPTIMIZER, *OVERLAP, "--bf16", tp=2),
    "C": _layout(4, 4, 32, *MOE, *DISTRIBUTED_OPTIMIZER, "--bf16", ep=2),
    "D1": _layout(1, 4, 8, *NO_DROPOUT),
    "D2": _layout(2, 4, 16, *NO_DROPOUT),
    "E": _layout(8, 8, 16, "--num-virtual-stages-per-pipeline-rank", "2", "--bf16", pp=4),
    "F": _layout(8, 4, 32, *MOE, *ROUTER_BIAS, "--bf16", ep=2, pp=2),
    "G": _layout(8, 4, 16, *FP16, tp=2, pp=2),
    "H": _layout(8, 4, 16, *NO_DROPOUT, "--bf16", tp=2, cp=2),
}
