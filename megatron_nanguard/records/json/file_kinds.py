"""Every kind of file that is one record of this room: its class, and where the file lies."""

from __future__ import annotations

from typing import Final, NamedTuple

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.machine.screening import Screening
from megatron_nanguard.records.postmortem import Postmortem
from megatron_nanguard.records.run.drill import DrillFile, DrillPlan
from megatron_nanguard.records.run.fingerprint import Fingerprint
from megatron_nanguard.records.run.parameters import ParameterMapFile
from megatron_nanguard.records.run.status import Status
from megatron_nanguard.records.step.capture import CaptureFile
from megatron_nanguard.records.suspect_call import PeerAnswer, SavedCall
from megatron_nanguard.records.trace import RankTrace


class FileKind(NamedTuple):
    """One kind of file.

    Attributes:
        record: the dataclass whose JSON form the file holds.
        path: relative to the directory of a run; of a screening, the command that writes it.
    """

    record: type
    path: str


FILE_KINDS: Final = {
    "incident": FileKind(Incident, "incidents/step_NNNNNNNN/incident.json"),
    "postmortem": FileKind(Postmortem, "incidents/step_NNNNNNNN/rankNNNNN_tpTppPdpD.json"),
    "trace": FileKind(RankTrace, "incidents/step_NNNNNNNN/traceNNNNN_tpTppPdpD.json"),
    "call": FileKind(SavedCall, "incidents/step_NNNNNNNN/bundle/call.json"),
    "answer": FileKind(PeerAnswer, "incidents/step_NNNNNNNN/peer/rankNNNNN/answer.json"),
    "capture": FileKind(CaptureFile, "incidents/step_NNNNNNNN/capture/rankNNNNN.json"),
    "param_map": FileKind(ParameterMapFile, "param_map_tpTppPdpD.json"),
    "fingerprint": FileKind(Fingerprint, "fingerprint.json"),
    "status": FileKind(Status, "status/rankNNNNN.json"),
    "drill": FileKind(DrillPlan, "drill.json"),
    "drill_outcomes": FileKind(DrillFile, "drill/rankNNNNN.json"),
    "screening": FileKind(Screening, "nanguard screen --json FILE"),
}
"""By the names that `nanguard schema` takes; what is read most comes first."""
