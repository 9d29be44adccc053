"""Builds the rooms and wires them: patch point to handler. Owns on and off; knows no stage."""

from __future__ import annotations

import argparse
import atexit
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch.distributed as dist

from megatron_nanguard import incident
from megatron_nanguard.attempt import Drilling, Meeting, Run
from megatron_nanguard.attempt.drilling import UNFIRED_EXIT_CODE, before_reduction
from megatron_nanguard.coordination.electorate import Voters
from megatron_nanguard.coordination.vote import vote
from megatron_nanguard.coordination.watchdog import Watchdog, leave_now
from megatron_nanguard.device import SATURATION_WARNING
from megatron_nanguard.drill.crew import DrillCrew
from megatron_nanguard.errors import DrillError, SettingsError
from megatron_nanguard.incident import Alarm, Setting, Subject
from megatron_nanguard.megatron_api import help_texts, host, optimizers
from megatron_nanguard.megatron_api.dispatch import is_dispatched
from megatron_nanguard.parameters.naming import name_modules
from megatron_nanguard.patch_points import ESSENTIAL
from megatron_nanguard.patching import KNOWN, Engine, Shield, line_of
from megatron_nanguard.policy import abort, deciding, skip
from megatron_nanguard.policy.scaler import Judgement
from megatron_nanguard.records.coordinates import Coordinates
from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.sentinel import Flag, flag_tensor
from megatron_nanguard.sentinel.flags import fault_flags
from megatron_nanguard.settings import Settings, add_arguments, flag_of, from_namespace
from megatron_nanguard.watching.watcher import Watcher

log = logging.getLogger("megatron_nanguard")

PASS = PolicyOutcome("none", "continue", None, "")
COUNTED_SKIP = PolicyOutcome("scaler", "skip", None, "")
MAX_UNSEEN = 8
"""Decisions in a row without a pass in between; a host that prepares its gradients twice a step stays far below."""


class Guard:
    """The guard of this process.

    Args:
        engine: whose wrappers call the handlers; it says what could not be applied.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.shield = Shield()
        self.settings: Settings | None = None
        self.active = False
        """All ranks agreed to start, and no fault has switched the guard off since."""
        self.counts: Counter[str] = Counter()
        self._meeting: Meeting | None = None
        self._meetings = 0
        self._run: Run | None = None
        self._speaks = False
        self._drilling: Drilling | None = None
        self._crews: dict[int, DrillCrew] = {}
        self._watchers: dict[int, Watcher] = {}
        self._place: Coordinates | None = None
        self._subjects: list[Subject] = []
        self._sorted: list[list[Any]] = []
        self._host_checks = host.HostChecks()
        self._depth = 0
        self._unseen = 0
        self._verdicts: dict[int, PolicyOutcome] = {}
        self._policy = "abort"
        self._notes: list[str] = []
        atexit.register(self._at_exit)

    @staticmethod
    def release() -> tuple[int, int] | None:
        """Release line of the Megatron that is imported."""
        version = host.core_version()
        return None if version is None else line_of(version)

    # ---------------------------------------------------------------- on and off

    def remove(self) -> None:
        """Leave no trace in the model or in Megatron's options; the engine undoes its wrappers itself."""
        self._switch_off()
        atexit.unregister(self._at_exit)

    def _switch_off(self) -> None:
        """Off on this rank; the caller knows that all ranks do the same. Megatron's own checks are back on."""
        self.active = False
        self._host_checks.restore()
        with self.shield("drill"):
            for crew in self._crews.values():
                crew.detach()
            for watcher in self._watchers.values():
                watcher.step_ends()
        # All of them go together: the next subject may get the id of one that is gone.
        self._subjects.clear()
        self._sorted.clear()
        self._watchers.clear()
        self._crews.clear()
        self._verdicts.clear()

    def handlers(self) -> dict[str, Any]:
        """What each patch point calls."""
        return {
            "options": self.add_options,
            "initialize_model_parallel": self.groups_exist,
            "wrap_chunk": self.chunk_wrapped,
            "get_param_groups": self.chunks_seen,
            "get_megatron_optimizer": self.optimizer_made,
            "forward_backward": self.schedule_called,
            "start_grad_sync": self.gradients_ready,
            "prepare_grads": self.decide,
            "optimizer_step": self.step,
            "clip_grad_norm": self.norm_known,
            "get_grad_norm": self.norm_known,
            "validate_result": self.stands_aside,
        }

    # ---------------------------------------------------------------- options

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add ours, and read them when this very parser has parsed: a bad value is an error of the command line."""
        add_arguments(parser)
        parse = parser.parse_known_args

        def parse_known_args(*args: Any, **kwargs: Any) -> Any:
            help_texts.mend(parser)
            namespace, rest = parse(*args, **kwargs)
            try:
                self.settings = self._checked(from_namespace(namespace, os.environ))
            except SettingsError as error:
                parser.error(str(error))
            return namespace, rest

        parser.parse_known_args = parse_known_args  # type: ignore[method-assign]

    def _checked(self, settings: Settings) -> Settings:
        if settings.on and settings.drill:
            try:
                Drilling(settings.drill, 0, int(os.environ.get("WORLD_SIZE", "1")))
            except DrillError as error:
                raise SettingsError(f"{flag_of('drill')}: {error}") from None
        return settings

    def _known_settings(self) -> Settings:
        """From the command line, else from the environment alone.

        Raises:
            SystemExit: a variable cannot be used.
        """
        if self.settings is None:
            try:
                self.settings = self._checked(Settings.from_texts(False, {}, os.environ))
            except SettingsError as error:
                sys.exit(f"nanguard: {error}")
        return self.settings

    # ---------------------------------------------------------------- start

    def groups_exist(self, rank_offset: int, local_world_size: int | None) -> None:
        """The parallel groups of this rank's world are there: meet its ranks."""
        size = dist.get_world_size() if local_world_size is None else local_world_size
        self._meet(range(rank_offset, rank_offset + size))

    def chunk_wrapped(self, chunk: Any) -> None:
        """A chunk was wrapped for data parallelism: last occasion to meet; its own NaN check stands aside."""
        if not self._meetings:
            self._meet(range(dist.get_world_size()))
        if self.active:
            with self.shield("host checks"):
                self._host_checks.switch_off([chunk])

    def _meet(self, ranks: Sequence[int]) -> None:
        """Handshake over the store. The wait is outside of any shield: it has a deadline of its own."""
        settings = self._known_settings()
        self._meetings += 1
        self._switch_off()
        self._meeting = None
        with self.shield("meeting the other ranks"):
            self._meeting = Meeting(ranks, self._meetings, waits=settings.on)
            if not settings.on:
                self._meeting.declare_off()
        if not settings.on or self._meeting is None:
            return
        agreement = self._meeting.agree(settings, [*self.engine.declined])
        self._speaks = self._meeting.rank == agreement.speaker
        self._tell_of_host()
        if not agreement.go:
            self._run_unguarded(agreement.reason)
            return
        missing = [self.engine.declined[group] for group in ESSENTIAL if group in self.engine.declined]
        if missing:
            self._run_unguarded("; ".join(missing))
            return
        with self.shield("start"):
            self._start(settings, agreement.run_id)
        self.active = True

    def _tell_of_host(self) -> None:
        """A Megatron we do not know, and what is lost where a function is not as we know it. Alike on all ranks."""
        assert self.settings is not None
        release = self.release()
        lost = {group: reason for group, reason in self.engine.declined.items() if group not in ESSENTIAL}
        problems = [f"{reason} (patch group {group!r})" for group, reason in lost.items()]
        if release is not None and not KNOWN[0] <= release <= KNOWN[1]:
            problems.append(
                f"Megatron core {host.core_version()} is outside of 0.8 to 0.19, which this version knows; "
                "functions that look as expected are wrapped, nanguard doctor lists them"
            )
        if problems and self.settings.strict:
            self._refuse("; ".join(problems))
        for problem in problems:
            self._notes.append(problem)
            if self._speaks:
                log.warning(problem)

    def _run_unguarded(self, reason: str) -> None:
        """Say it once, from one rank; with --nanguard-strict leave instead."""
        assert self.settings is not None
        message = f"all ranks run unguarded: {reason}"
        self._notes.append(message)
        if self.settings.strict:
            self._refuse(message)
        if self._speaks:
            log.warning(message)

    def _refuse(self, message: str) -> NoReturn:
        """End every rank; one says why."""
        sys.exit(f"nanguard: --nanguard-strict: {message}" if self._speaks else 1)

    def _start(self, settings: Settings, run_id: str) -> None:
        assert self._meeting is not None
        self._run = Run(settings, run_id, self._meeting.rank, partial(self._meeting.is_first, "cannot write"))
        self._policy = settings.on_nonfinite
        if self._policy == "skip" and not host.trainer_tolerates_skips():
            self._policy = "abort"
            if self._speaks:
                log.warning("this trainer takes a skipped step for a fatal error: policy abort instead of skip")
        if settings.drill:
            self._drilling = Drilling(settings.drill, self._meeting.rank, dist.get_world_size())
        if self._speaks:
            log.info(
                "guards %d ranks, policy %s, files in %s",
                len(self._meeting.ranks),
                self._policy,
                self._run.directory.path,
            )
            if self._drilling and settings.drill:
                self._run.write_drill_plan(settings.drill)
                log.warning("this run is a drill: faults are planted on purpose (%s)", settings.drill)
                self._drilling.mark_checkpoints()

    # ---------------------------------------------------------------- names

    def chunks_seen(self, chunks: Sequence[Any]) -> None:
        """Chunks whose parameters are being sorted: kept together for optimizers that are built past the factory."""
        if not self.active:
            return
        others = [known for known in self._sorted if not _have_common(known, chunks)]
        joined = [chunk for known in self._sorted if _have_common(known, chunks) for chunk in known]
        joined += [chunk for chunk in chunks if not _have_common(joined, [chunk])]
        self._sorted = [*others, joined]

    def optimizer_made(self, optimizer: Any, chunks: Sequence[Any]) -> None:
        """Put an optimizer under guard."""
        self._sorted.clear()
        if self.active:
            self._watch(optimizer, chunks)

    def _watch(self, optimizer: Any, chunks: Sequence[Any]) -> Subject:
        assert self._meeting is not None and self.settings is not None
        electorate = self._meeting.electorate()
        subject = Subject(optimizer, chunks, electorate, self.settings, self.shield)
        self._subjects.append(subject)
        with self.shield("names"):
            subject.learn()
            self._place = subject.coordinates
            self._set_watch(subject)
            if self._run is not None:
                self._run.write_map(subject.names, subject.coordinates, subject.sizes)
                if self._meeting.is_first("start"):
                    self._run.write_fingerprint(subject.sizes.world, self._host_checks.changes())
                    self._tell_of_start(subject)
            self._plant(subject)
        return subject

    def _sorted_with(self, chunks: Sequence[Any]) -> Sequence[Any]:
        """The chunks whose parameters were sorted together with these, as far as that was seen."""
        return next((known for known in self._sorted if _have_common(known, chunks)), chunks)

    def _tell_of_start(self, subject: Subject) -> None:
        if self._host_checks.changes():
            log.info("Megatron's own NaN checks stand aside; one vote per step takes their place")
        facts = subject.device.facts()
        log.info("device %s (%s), overflow mode %s", facts.name, facts.backend, facts.overflow_mode)
        if facts.overflow_mode == "saturation":
            log.warning(SATURATION_WARNING)

    def _set_watch(self, subject: Subject) -> None:
        """``--nanguard-watch``; the last rank to find no matching module says so."""
        wanted, meeting, run = self.settings, self._meeting, self._run
        if wanted is None or wanted.watch is None or meeting is None or run is None:
            return
        watcher = self._watchers[id(subject)] = Watcher(
            wanted.watch,
            wanted.watch_steps,
            wanted.watch_above,
            rank=meeting.rank,
            directory=run.directory.path,
            speaks=partial(meeting.is_first, "watch"),
            guarded=self.shield,
        )
        num_matches = watcher.attach(name_modules(subject.chunks))
        if not num_matches and int(meeting.store("watch").add("none", 1)) == len(meeting.ranks):
            log.warning("--nanguard-watch %r matches no module on any rank; names are global", wanted.watch)

    def _plant(self, subject: Subject) -> None:
        if self._drilling is None or self._meeting is None:
            return
        counters = self._meeting.store("drill")
        try:
            self._crews[id(subject)] = self._drilling.attach(subject.chunks, subject.names, counters)
        except DrillError as error:
            log.error("%s", error)
            raise SystemExit(2) from None

    # ---------------------------------------------------------------- the step

    def schedule_called(self, schedule: Callable[..., Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """A forward-backward pass begins; evaluation is no step."""
        if not self.active or kwargs.get("forward_only", False):
            return kwargs
        with self.shield("step"):
            model = kwargs["model"]
            chunks = list(model) if isinstance(model, Sequence) else [model]
            subject = self._subject_of(chunks) or self._watch(None, self._sorted_with(chunks))
            kwargs = subject.open(schedule, kwargs)
            if id(subject) in self._crews:
                self._crews[id(subject)].step_begins(subject.step)
            if id(subject) in self._watchers:
                self._watchers[id(subject)].step_begins(subject.step)
        if self.shield.fault is not None:
            # The step may not have been opened here, and the others vote on it.
            for subject in self._subjects:
                subject.is_open = True
        return kwargs

    def gradients_ready(self, group: Any, force_all_reduce: bool) -> None:
        """A bucket group is about to be reduced. May run on an autograd thread."""
        if not self.active:
            return
        with self.shield("before the reduction"):
            for subject in self._subjects:
                if subject.holds(group) and not is_dispatched(group):
                    if id(subject) in self._crews:
                        before_reduction(self._crews[id(subject)], group)
                    subject.before.look(group, force_all_reduce)

    def step(self, step: Callable[[], Any], optimizer: Any) -> Any:
        """Vote for a rank that has nothing to train, and in some releases returns before ``prepare_grads``."""
        if not self.active or self._depth or not optimizers.is_stub(optimizer):
            return step()
        verdict = self._decide(optimizer)
        # Where the host comes to prepare_grads all the same, that repeats the decision.
        result = step()
        return (False, None, None) if verdict.action == "skip" else result

    def decide(self, prepare: Callable[[], bool], optimizer: Any) -> bool:
        """The decision point: vote, then let the host prepare its gradients, or veto."""
        if not self.active or self._depth:
            return prepare()
        self._depth += 1
        try:
            outcome = self._decide(optimizer)
            return skip.veto(prepare, optimizer) if outcome.action == "skip" else prepare()
        finally:
            self._depth -= 1

    def norm_known(self, optimizer: Any, norm: Any) -> None:
        """The host has computed a gradient norm; the outermost optimizer's comes last and stands."""
        if self.active:
            with self.shield("norm"):
                subject = self._subject_for(optimizer)
                if subject is not None and norm is not None:
                    subject.norms.append(norm)

    def stands_aside(self, rejection_func: Any) -> bool:
        """Whether a check of the host is taken over: NaN and Inf only."""
        return self.active and rejection_func in host.NAN_CHECKS

    def _decide(self, optimizer: Any) -> PolicyOutcome:
        """One vote, and an incident when it raises an alarm.

        Collective: all voters of the optimizer. Local work is shielded; the vote is not.
        """
        subject = self._subject_for(optimizer)
        if subject is None or not subject.is_open:
            self._count_unseen()
            return self._verdicts.get(id(subject), PASS)
        self._unseen = 0
        with self.shield("watch"):
            if id(subject) in self._watchers:
                self._watchers[id(subject)].step_ends()
        voters = subject.electorate.voters()
        if voters is None:
            subject.close()
            return PASS
        verdict = self._verdicts[id(subject)] = self._judge(subject, optimizer, voters)
        subject.close()
        if id(subject) in self._crews:
            with self.shield("drill"):
                self._crews[id(subject)].step_ends()
        if verdict.action == "abort":
            self._leave()
        return verdict

    def _count_unseen(self) -> None:
        """No pass since the last decision: the host asks twice about the same gradients, or hides its passes."""
        self._unseen += 1
        if self._unseen == MAX_UNSEEN:
            message = "steps run unguarded: no call of the pipeline schedule is seen (a full-iteration CUDA graph?)"
            self._notes.append(message)
            if self._speaks:
                log.warning(message)

    def _judge(self, subject: Subject, optimizer: Any, voters: Voters) -> PolicyOutcome:
        flags = None
        with self.shield("flags"):
            if id(subject) in self._crews:
                self._crews[id(subject)].after_reduction()
            flags = flag_tensor(subject.suspicions(optimizer), len(voters.ranks), subject.torch_device)
        if flags is None:
            flags = fault_flags(subject.torch_device)
        elif self.shield.fault is not None:
            flags[Flag.OWN_FAULT] = 1
        alarm = Alarm(tuple(vote(flags, voters)), optimizer)
        self.counts["steps_guarded"] += 1
        if self._is_incident(subject, alarm):
            verdict = self._incident(subject, alarm, voters)
        else:
            verdict = COUNTED_SKIP if self._is_overflow(alarm) else PASS
        if alarm.has(Flag.OWN_FAULT):
            # Only now: Megatron's own checks were off when this step's gradients went by.
            self._give_up(voters)
        return verdict

    def _is_overflow(self, alarm: Alarm) -> bool:
        return alarm.has(Flag.LOCAL) or alarm.has(Flag.REDUCED)

    def _is_incident(self, subject: Subject, alarm: Alarm) -> bool:
        """The same on every rank: from exchanged flags and counts of them."""
        bad = self._is_overflow(alarm) or alarm.has(Flag.LOSS) or alarm.has(Flag.DEAD_STEP)
        self.counts["alarms"] += bad
        if not alarm.has(Flag.DYNAMIC_SCALE):
            return bad
        judgement = subject.tally.judge(self._is_overflow(alarm), alarm.has(Flag.LOSS), alarm.has(Flag.MINIMAL_SCALE))
        return judgement is Judgement.INCIDENT or alarm.has(Flag.DEAD_STEP)

    def _incident(self, subject: Subject, alarm: Alarm, voters: Voters) -> PolicyOutcome:
        assert self._meeting is not None and self.settings is not None and self._run is not None
        self.counts["incidents"] += 1
        policy = self._policy
        watchdog = Watchdog(self._meeting.store("incident"), self._meeting.rank, len(voters.ranks))
        setting = Setting(
            voters=voters,
            run=self._run.directory,
            run_id=self._run.run_id,
            deadline=self.settings.deadline,
            policy_name=policy,
            shield=self.shield,
            watchdog=watchdog,
            exercise=partial(self._exercise, subject),
            saves_calls=self.settings.capture == "op",
        )
        return incident.handle(
            subject,
            alarm,
            setting,
            lambda outcome: deciding.decide(policy, subject.step, subject.budget, has_bad_copy=outcome.has_bad_copy),
        )

    @contextmanager
    def _exercise(self, subject: Subject) -> Iterator[None]:
        """Around each pass of a replay: drills fire again, as a fault would."""
        crew = self._crews.get(id(subject))
        if crew is not None:
            crew.step_begins(subject.step)
        yield
        if crew is not None:
            crew.after_reduction()

    def _give_up(self, voters: Voters) -> None:
        """A fault of ours on some rank: off on all ranks together."""
        self._switch_off()
        message = (
            "a fault of nanguard's own on some rank: it is off on all ranks, Megatron's own NaN checks are back on"
        )
        self._notes.append(message)
        if self._meeting is not None and self._meeting.rank == voters.ranks[0]:
            log.warning(message)

    # ---------------------------------------------------------------- finding the subject

    def _subject_of(self, chunks: Sequence[Any]) -> Subject | None:
        return next((s for s in self._subjects if any(s.owns(chunk) for chunk in chunks)), None)

    def _subject_for(self, optimizer: Any) -> Subject | None:
        """The subject of an optimizer or of one of its leaves."""
        for subject in self._subjects:
            if subject.optimizer is optimizer:
                return subject
        return self._subject_of(optimizers.model_chunks(optimizer)) or next(
            (s for s in self._subjects if s.is_open), None
        )

    # ---------------------------------------------------------------- exit

    def _leave(self) -> None:
        self._write_last()
        atexit.unregister(self._at_exit)
        abort.leave()

    def _at_exit(self) -> None:
        unfired = self._drilling.unfired() if self._drilling else []
        self._write_last()
        for text in unfired:
            log.error("drill %s, on rank %s: nothing was tested", text, os.environ.get("RANK", "0"))
        if unfired:
            leave_now(UNFIRED_EXIT_CODE)

    def _write_last(self) -> None:
        if self._run is None:
            return
        with self.shield("exit"):
            for crew in self._drilling.crews if self._drilling else ():
                if crew.drills:
                    self._run.write_drill(crew.record())
            self._run.write_status(self._place, self.engine.fired, self.counts, tuple(self._notes))


def _have_common(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return any(one is other for one in some for other in others)
