"""Whether a dynamic loss scale is one that no step was applied at since it went up: too high is then what to expect."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_nanguard.megatron_api.optimizers import ScalerTrackers


class RaisedScale:
    """Follows the scalers of one optimizer from vote to vote."""

    def __init__(self) -> None:
        self._raised: list[bool] = []

    def look(self, scalers: Sequence[ScalerTrackers]) -> bool:
        """Whether one of them is at a scale just raised; to be asked once per step, before it is decided on."""
        # A trainer may put other scalers in place; of those nothing went before.
        before = self._raised if len(self._raised) == len(scalers) else [False] * len(scalers)
        self._raised = [_is_raised(scaler, was) for scaler, was in zip(scalers, before, strict=True)]
        return any(self._raised)


def _is_raised(scaler: ScalerTrackers, was: bool) -> bool:
    if scaler.growth > 0 or scaler.hysteresis_left <= 0:
        return False
    # With the hysteresis used in part, an overflow came since: at the scale that was there before it.
    return was or scaler.hysteresis_left == scaler.hysteresis
