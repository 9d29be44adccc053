#!/usr/bin/env bash
# Run a Megatron-LM checkout's own pretrain_gpt.py, unedited, with its own megatron package, guarded, on 8 CPU ranks:
#   scripts/host_tree.sh TREE [FURTHER ARGUMENTS OF THE SCRIPT...]          (TREE at tag core_v0.19.0)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

if [[ $# -lt 1 || ! -f $1/pretrain_gpt.py || ! -d $1/megatron/training ]]; then
  say "usage: scripts/host_tree.sh TREE [ARGUMENTS...]; TREE is a checkout of Megatron-LM at tag core_v0.19.0"
  exit 2
fi
TREE=$(cd "$1" && pwd)
shift
prepare_venv .

# Layout A: TP2 PP2 DP2, bf16, three steps of a tiny GPT on mock data.
ARGS=(
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --bf16
  --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32
  --vocab-size 128 --make-vocab-size-divisible-by 8 --tokenizer-type NullTokenizer --mock-data --num-workers 0
  --micro-batch-size 2 --global-batch-size 16 --train-iters 3 --eval-iters 0 --eval-interval 1000 --log-interval 1
  --lr 1e-3 --min-lr 1e-4 --lr-decay-style constant --weight-decay 0.01 --clip-grad 1.0
  --transformer-impl local --no-persist-layer-norm --no-gradient-accumulation-fusion --no-masked-softmax-fusion
  --no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion --distributed-timeout-minutes 2
)
export PYTHONPATH=$TREE${PYTHONPATH:+:$PYTHONPATH}
exec "$PYTHON" -m megatron_nanguard cpu-run --nproc 8 --show 0,7 "$TREE/pretrain_gpt.py" "${ARGS[@]}" --nanguard "$@"
