"""The merged incident, and the sentence for the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from megatron_nanguard.arbitration.bundle import write_bundle
from megatron_nanguard.diagnosis.concluding import conclude, trace_back
from megatron_nanguard.diagnosis.next_steps.experiments import BEARING_OPTIONS
from megatron_nanguard.incident.arbitrating import without_call
from megatron_nanguard.incident.rank_summary import ExchangeOutcome
from megatron_nanguard.incident.sharing import Evidence
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.postmortem.bundles import BUNDLE_NAME, CALL_NAME, write_cause
from megatron_nanguard.postmortem.job_history import earlier_incidents
from megatron_nanguard.postmortem.loading import merge_directory, read_traces
from megatron_nanguard.postmortem.merging.incident import merge
from megatron_nanguard.postmortem.merging.sentences import summarize
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.postmortem.search import MERGED_NAME, RANK_FILES, TRACE_FILES, matching_names
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
        self._run, self._incident, self._name = run, incident, f"{incident}/{MERGED_NAME}"
        self._directory = run.path / incident
        self._exchanged = outcome
        self._traces: tuple[RankTrace, ...] = ()
        self.known: Incident | None = None
        """What was merged last, on disk or not."""

    def after_exchange(self, mine: Iterable[Evidence]) -> None:
        """Merge the signals: every rank has written its own before it came to the exchange.

        Args:
            mine: of this rank, from memory.
        """
        self.known = self._merged(None, mine)
        if self.known is not None:
            self._run.write(self._name, self.known)

    def after_replay(self, replay: ReplaySummary) -> None:
        """Join the traces, which all ranks have written by now; the post-mortems of the ranks have not changed."""
        if self.known is not None:
            self._traces = self._read_traces(())
            self.known = trace_back(replace(self.known, replay=replay), self._traces)
            self._run.write(self._name, self.known)

    def sees(self, num_ranks: int, has_traces: bool) -> bool:
        """Whether the files of all ranks are in the directory.

        Args:
            has_traces: every rank has a trace.
        """

        def look() -> bool:
            num_traces = len(matching_names(self._directory, TRACE_FILES))
            num_postmortems = len(matching_names(self._directory, RANK_FILES))
            return num_postmortems >= num_ranks and (num_traces >= num_ranks or not has_traces)

        return self._run.attempt(self._incident, look, "read") or False

    def complete(self, policy: PolicyOutcome, sent: Sequence[Evidence]) -> Path | None:
        """Merge the complete post-mortems and weigh the evidence; `known` is as complete as this came.

        Args:
            sent: what need not be read from files.
        Returns:
            The file; None where it could not be written.
        """
        merged = self._merged(policy, sent)
        if merged is None:
            return None
        # First without the verdict: what was merged must not be lost to a rule that fails.
        joined, self.known = self.known, merged
        if joined is not None:
            self.known = replace(merged, origin=joined.origin, infected=joined.infected or merged.infected)
        path = self._run.write(self._name, merged)
        self._traces = self._read_traces(sent)
        earlier = self._run.attempt(self._incident, lambda: tuple(earlier_incidents(self._directory)), "read") or ()
        self.known = conclude(merged, self._traces, earlier, host_program.option_values(BEARING_OPTIONS))
        path = self._run.write(self._name, self.known) or path
        self._complete_bundle(self.known)
        return path

    def add_fault(self, rank: int, notes: Sequence[str]) -> None:
        """Name this rank among those where a part of the guard failed: it may have failed after the last version.

        Args:
            notes: sentences about what failed.
        """
        if self.known is not None and rank not in self.known.own_faults:
            own_faults = tuple(sorted((*self.known.own_faults, rank)))
            self.known = replace(self.known, own_faults=own_faults, notes=(*self.known.notes, *notes))
            self._run.write(self._name, self.known)

    def _complete_bundle(self, concluded: Incident) -> None:
        """Write the verdict into the bundle; where no rank had a call to save, write why there is none."""
        bundle = self._directory / BUNDLE_NAME

        def complete() -> None:
            if self._saves_calls and not bundle.exists():
                call = without_call(concluded)
                if call is not None and not write_bundle(bundle, call):
                    self._run.has_been_logged(f"{self._incident}/{BUNDLE_NAME}")
            if concluded.causes and (bundle / CALL_NAME).is_file():
                write_cause(bundle, concluded.causes[0].cause)

        if not self._run.has_failed:
            self._run.attempt(f"{self._incident}/{BUNDLE_NAME}/{CALL_NAME}", complete)

    def _merged(self, policy: PolicyOutcome | None, sent: Iterable[Evidence]) -> Incident | None:
        """Merge the files with what was exchanged and sent; None where there is nothing to merge."""
        known = [each.postmortem for each in sent]

        def read() -> Incident | None:
            if not self._directory.is_dir():  # no rank could write, which was logged
                return None
            return merge_directory(self._directory, exchanged=self._exchanged, policy=policy, known=known)

        merged = self._run.attempt(self._incident, read, "read")
        if merged is None and known:
            return merge(known, exchanged=self._exchanged, policy=policy)
        return merged

    def _read_traces(self, sent: Sequence[Evidence]) -> tuple[RankTrace, ...]:
        """The traces of all ranks: those that were sent, else those read before, else from files."""
        traces = {trace.rank: trace for trace in self._traces}
        if not traces:
            found = self._run.attempt(self._incident, lambda: read_traces(self._directory), "read")
            traces = {trace.rank: trace for trace in found or ()}
        traces |= {each.trace.rank: each.trace for each in sent if each.trace is not None}
        return tuple(traces[rank] for rank in sorted(traces))


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
