"""The post-mortem of this rank: on disk from the first stage on, and again with what each stage adds to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from megatron_nanguard.incident.setting import Setting
from megatron_nanguard.records.postmortem import Postmortem


class RankFile:
    """Written before the next thing that can fail; a fault while writing is one of ours, and training goes on.

    Args:
        incident: its directory, relative to the run.
    Attributes:
        postmortem: as it stands; None where the signal could not be put together.
    """

    def __init__(self, setting: Setting, incident: str) -> None:
        self._setting, self._incident = setting, incident
        self.postmortem: Postmortem | None = None

    def begin(self, postmortem: Postmortem) -> None:
        """Write what this rank knows alone. Not shielded: its maker is."""
        self.postmortem = postmortem
        self._setting.run.write_postmortem(self._incident, postmortem)

    def add(self, stage: str, **known: Any) -> None:
        """Write it again with what a stage found.

        Args:
            known: attributes of the post-mortem.
        """
        if self.postmortem is None:
            return
        with self._setting.shield(f"incident, {stage}"):
            self.postmortem = replace(self.postmortem, **known)
            self._setting.run.write_postmortem(self._incident, self.postmortem)
