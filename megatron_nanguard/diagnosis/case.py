"""What the rules judge: one incident, the incidents before it, and the options of the training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from megatron_nanguard.diagnosis.joining.origins import UNSEEN_WRITER
from megatron_nanguard.diagnosis.origin_facts import base_name
from megatron_nanguard.records.incident import Incident, Origin
from megatron_nanguard.records.phrase import name_ranks, phrase
from megatron_nanguard.records.postmortem import ScalerState
from megatron_nanguard.records.step.replay import AuditFinding, CameBack, PassLabel
from megatron_nanguard.records.suspect_call import Arbitration
from megatron_nanguard.records.trace import OriginKind, place_words


@dataclass(frozen=True)
class Case:
    """One incident as the rules judge it. What is not known is empty.

    Attributes:
        incident: merged over all ranks, with its origins.
        earlier: the incidents before it that bear on it, of the run and of earlier attempts, oldest first.
        host_options: values of Megatron's options that bear on the next experiment, as text, as far as they are known.
    """

    incident: Incident
    earlier: tuple[Incident, ...] = ()
    host_options: Mapping[str, str] = field(default_factory=dict)

    def origins_of(self, *kinds: OriginKind) -> tuple[Origin, ...]:
        """The origins of some kinds."""
        return tuple(origin for origin in self.incident.origin if origin.kind in kinds)

    def origins_in(self, *operators: str) -> tuple[Origin, ...]:
        """The origins that an operator of one of these base names made."""
        return tuple(
            origin for origin in self.origins_of(OriginKind.OPERATOR) if base_name(origin.operator) in operators
        )

    def external_origins(self, *whats: str) -> tuple[Origin, ...]:
        """The origins that are tensors from before the trace, of some kinds as the tracer names them.

        Args:
            whats: "parameter", "buffer", "tensor" or GRADIENT_OF.
        """
        return tuple(origin for origin in self.origins_of(OriginKind.OUTSIDE) if origin.operator.startswith(whats))

    @property
    def masked_softmaxes(self) -> tuple[Origin, ...]:
        """The origins that are a softmax which made NaN going forward, as a row with everything masked does."""
        made = self.origins_in("softmax", "log_softmax", "scaled_dot_product_attention")
        return tuple(each for each in made if each.pattern == "nan" and each.phase in ("forward", "recompute"))

    def name(self, origin: Origin) -> str:
        """An origin in a sentence: "log in decoder.layers.3.mlp"; one of several: "... (rank 5, load)"."""
        what = origin.operator
        if what == UNSEEN_WRITER:
            what = phrase("{operator} on {output}", operator=UNSEEN_WRITER, output=origin.output)
        if origin.module:
            what = phrase("{operator} in {module}", operator=what, module=origin.module)
        if len(self.incident.origin) < 2:
            return what
        ranks = name_ranks(origin.members)
        when = place_words(origin.phase, origin.microbatch)
        return phrase("{what} ({ranks}, {when})", what=what, ranks=ranks, when=when)

    def origin_of(self, call: Arbitration) -> Origin | None:
        """The origin that a suspect call was saved for; None where it has another name, such as an operator's."""
        place = call.rank, call.module, call.operator
        return next(
            (each for each in self.incident.origin if (each.rank, each.module, each.operator) == place),
            None,
        )

    @property
    def ranks_alike(self) -> tuple[int, ...]:
        """The ranks whose origin has the module, operator and phase of the first one; empty for a single rank."""
        calls = [(each.module, each.operator, each.phase) for each in self.incident.origin]
        same = {each.rank for each, call in zip(self.incident.origin, calls, strict=True) if call == calls[0]}
        return tuple(sorted(same)) if len(same) > 1 else ()

    def came_back(self, label: PassLabel) -> CameBack | None:
        """Whether the fault came back in a labelled pass; None when there was none."""
        passes = self.incident.replay.passes
        return next((each.came_back for each in passes if each.label == label), None)

    @property
    def wavers(self) -> bool:
        """Whether of two traced replays, made alike, the first was bad and the second finite."""
        return self.came_back("traced") in ("yes", "partly") and self.came_back("probed") == "no"

    @property
    def went_away(self) -> bool:
        """Whether a replay was finite: the plain one, or the second of two traced ones."""
        return self.came_back("plain") == "no" or self.wavers

    @property
    def usable_calls(self) -> tuple[Arbitration, ...]:
        """The suspect calls with finite inputs. A call that was given NaN or Inf proves nothing about its device."""
        return tuple(call for call in self.incident.arbitrations if not call.inputs_bad)

    @property
    def has_saved_call(self) -> bool:
        """Whether a suspect call with finite inputs was saved, so that it can be run again elsewhere."""
        return any(call.captured for call in self.usable_calls)

    @property
    def has_finite_losses(self) -> bool:
        """Whether losses are known and all of them are finite."""
        losses = self.incident.losses
        return bool(losses) and not any(each.nonfinite_ranks for each in losses)

    @property
    def scaler(self) -> ScalerState | None:
        """The dynamic loss scaler; None where the loss has no scale, or a constant one."""
        return None if self.incident.loss_scale is None else self.incident.scaler

    def audit_of(self, *kinds: str) -> tuple[AuditFinding, ...]:
        """The tensors of some kinds that were bad before the step."""
        return tuple(finding for finding in self.incident.audit if finding.kind in kinds)

    @property
    def backend(self) -> str:
        """What the run computes with: "cuda", "npu" or "cpu"; empty when unknown."""
        return next((device.backend for device in self.incident.devices), "")

    @property
    def saturates(self) -> bool:
        """Whether the devices turn an overflow into the largest number."""
        return any(device.overflow_mode == "saturation" for device in self.incident.devices)
