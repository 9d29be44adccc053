"""`nanguard grad-check`: compare the gradients of a user's model and batch over all ranks."""

from __future__ import annotations

from pathlib import Path

import click

from megatron_nanguard.cli import SECONDS, say


@click.command("grad-check")
@click.option("--model", required=True, metavar="MODULE:FUNCTION", help="Function that builds the model; see above.")
@click.option(
    "--batch",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the batch; see above.",
)
@click.option(
    "--deadline", type=SECONDS, default=300.0, help="Seconds after which a rank counts as lost (default 300)."
)
def command(model: str, batch: Path, deadline: float) -> int:
    """Run one forward and backward of your model on every rank; the answer is "rank 3 only", "all ranks" or "clean".

    FUNCTION takes no arguments. It returns a torch module and loss_fn(module, batch), or only a module whose
    forward(**batch) returns the loss. The batch is a .safetensors file, or a dictionary of tensors that torch.save
    wrote. Every rank builds the model with the same seed, so gradients should be equal bit for bit on all ranks. Exit
    code 0 when they are, and finite, else 1.

    \b
    Examples:
      torchrun --nproc-per-node 8 -m megatron_nanguard grad-check --model pkg.module:build --batch batch.pt
      torchrun --nproc-per-node 8 scripts/grad_check.py --model pkg.module:build --batch batch.safetensors
    """
    try:
        from megatron_nanguard.screening.grad_check import check
        from megatron_nanguard.screening.grad_check.user_model import UserModel
        from megatron_nanguard.screening.participant import Participant, world_size
    except ModuleNotFoundError as error:
        raise click.ClickException(f"gradients can only be checked where torch is installed: {error}") from None
    world_size()
    user_model = UserModel.load(model, batch)
    participant = Participant.join(deadline, memory_share=0.0)
    result = check(participant, user_model)
    if participant.barrier.rank == result.reporter:
        say(result.words)
    participant.leave(result.code, len(result.missing))
    return result.code
