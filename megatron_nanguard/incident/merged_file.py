"""The merged incident, and the sentence for the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from megatron_nanguard.arbitration.bundle import write_bundle
from megatron_nanguard.diagnosis.concluding import conclude, trace_back
from megatron_nanguard.diagnosis.next_steps.experiments import BEARING_OPTIONS
from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.incident.arbitrating import without_call
from megatron_nanguard.incident.rank_summary import ExchangeOutcome
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.postmortem.bundles import BUNDLE_NAME, CALL_NAME, write_cause
from megatron_nanguard.postmortem.job_history import earlier_incidents
from megatron_nanguard.postmortem.loading import merge_directory, read_traces
from megatron_nanguard.postmortem.merging.sentences import summarize
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.postmortem.search import MERGED_NAME
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.incident import Incident, PolicyOutcome
from megatron_nanguard.records.step.replay import ReplaySummary
from megatron_nanguard.records.trace import RankTrace


class MergedFile:
    """``incident.json``, written by one rank after the exchange, after the replay and at the end.

    Each version replaces the one before, so that nothing known is lost with a rank that dies later. Only the last one
    has causes; a reader of an earlier one weighs the evidence itself.
    """

    def __init__(self, run: RunDirectory, incident: str, outcome: ExchangeOutcome, *, saves_calls: bool = True) -> None:
        """Write nothing yet.

        Args:
            run: directory of the run.
            incident: directory of the incident, relative to the run.
            outcome: of the exchange.
            saves_calls: the incident is to have a bundle.
        """
        self._saves_calls = saves_calls
        self._run, self._name = run, f"{incident}/{MERGED_NAME}"
        self._directory = run.path / incident
        self._exchanged = outcome
        self._first: Incident | None = None
        self._traces: tuple[RankTrace, ...] = ()

    def after_exchange(self) -> None:
        """Merge the signals: every rank has written its own before it came to the exchange."""
        self._first = self._merged(None)
        if self._first is not None:
            self._run.write(self._name, self._first)

    def after_replay(self, replay: ReplaySummary) -> None:
        """Join the traces, which all ranks have written by now; the post-mortems of the ranks have not changed."""
        if self._first is not None:
            self._traces = read_traces(self._directory)
            self._run.write(self._name, trace_back(replace(self._first, replay=replay), self._traces))

    def complete(self, policy: PolicyOutcome) -> tuple[Incident | None, Path | None]:
        """Merge the complete post-mortems and weigh the evidence.

        Returns:
            The incident and its file; None where the directory holds nothing or cannot be written.
        """
        merged = self._merged(policy)
        if merged is None:
            return None, None
        # First without the verdict: what was merged must not be lost to a rule that fails.
        path = self._run.write(self._name, merged)
        traces = self._traces or read_traces(self._directory)
        earlier = tuple(earlier_incidents(self._directory))
        concluded = conclude(merged, traces, earlier, host_program.option_values(BEARING_OPTIONS))
        self._run.write(self._name, concluded)
        self._complete_bundle(concluded)
        return concluded, path

    def _complete_bundle(self, concluded: Incident) -> None:
        """Write the verdict into the bundle; where no rank had a call to save, write why there is none."""
        bundle = self._directory / BUNDLE_NAME
        if self._saves_calls and not bundle.exists():
            call = without_call(concluded)
            if call is not None:
                write_bundle(bundle, call)
        if concluded.causes and (bundle / CALL_NAME).is_file():
            write_cause(bundle, concluded.causes[0].cause)

    def _merged(self, policy: PolicyOutcome | None) -> Incident | None:
        """Merge the files with what was exchanged; None where nothing could be written, which was logged before."""
        try:
            return merge_directory(self._directory, exchanged=self._exchanged, policy=policy)
        except PostmortemError:
            return None


def sentence(step: int, outcome: ExchangeOutcome, merged: Incident | None) -> str:
    """The sentence for the log: which ranks were bad, where it began, and the most likely cause."""
    sentences = [summarize(step, outcome.kind, outcome.ranks, outcome.groups)]
    if merged is not None and merged.origin:
        first = merged.origin[0]
        where = "" if first.microbatch is None else f" of micro-batch {first.microbatch}"
        line = f" at {first.source_line}" if first.source_line else ""
        module = f" in {first.module}" if first.module else ""
        others = f", and {len(merged.origin) - 1} more" if len(merged.origin) > 1 else ""
        what = f"{first.operator}{module} -> {first.pattern}{line}"
        sentences.append(f"It began on rank {first.rank}, {first.phase}{where}: {what}{others}.")
    if merged is not None and merged.causes:
        likeliest = merged.causes[0]
        is_open = likeliest.cause == Cause.UNDECIDED
        sentences.append(
            "The cause is undecided." if is_open else f"Most likely: {likeliest.cause} ({likeliest.confidence:.0%})."
        )
    return " ".join(sentences)
