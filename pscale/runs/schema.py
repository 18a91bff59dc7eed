"""The columns of a run's tables, each declared once: name, type and meaning; the unit is the name's ending.

Names and units are a promise to readers; new columns may be added. A null stands for what does not apply or
was not measured. `case` is the content id of a case, `repeat` counts its launches from 0. Before the columns
stand the words that the worker writes and the analysis reads: phases, calls and kinds of events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol, get_args

from pscale.config.axes import DEGREES
from pscale.config.choices import Phase
from pscale.config.metrics import MEMORY_KINDS

ACTIONS = ("forward", "backward", "input", "weight")  # of a pipeline's schedule
PHASES: tuple[str, ...] = get_args(Phase)

# Calls by whom they depend on; see docs/measurement.md.
AMONG_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
FROM_ROOT = ("broadcast", "scatter")
TO_ROOT = ("gather", "reduce")
BETWEEN_TWO = ("send", "receive")
Verb = Literal["read", "write"]  # of a file, beside the step
OFFLOADING: tuple[Verb, ...] = get_args(Verb)
FOREIGN = ("scan", "neighbours", "communicator")  # of programs that are watched
VERBS = (*AMONG_ALL, *FROM_ROOT, *TO_ROOT, *BETWEEN_TWO, "copy", *OFFLOADING, *FOREIGN)


class IoRecorder(Protocol):
    """Records bytes when they are handed over, waits of the step, and when the thread moved them."""

    def io_submitted(self, verb: Verb, size_bytes: int) -> None:
        """Record that the thread is to move so much."""
        ...

    def io_waited(self, verb: Verb, enter: int, leave: int) -> None:
        """Record that the step had to wait for it."""
        ...

    def io_done(self, verb: Verb, size_bytes: int, enter: int, leave: int) -> None:
        """Record when the thread did it, some time ago."""
        ...


class Kind(IntEnum):
    """What an event is."""

    STEP = 0
    PHASE = 1
    CALL = 2
    ROOT = 3  # a call on the rank that the others depend on
    POSTED = 4
    POLLED = 5  # tested: not complete yet
    POLLED_COMPLETE = 6  # tested: complete, though the rank need not have it yet
    COMPLETED = 7  # from here on the rank relies on it; takes no time if polled complete before
    COPIED = 8
    INJECTED = 9  # a delay, on purpose
    IO_SUBMITTED = 10  # a read or write of a file, to the thread that does them
    IO_WAITED = 11  # the step waited for one
    IO_DONE = 12  # by the thread, some time before this was recorded


VERSION = 2

Table = Literal["cases", "steps", "calls", "ranks", "kernels", "figures", "events"]
Type = Literal["text", "int", "float", "bool", "texts", "ints", "floats"]  # a plural: a list in each row

_UNITS = {"_s": "s", "bytes": "bytes", "flops": "FLOP", "gflops": "GFLOP/s", "_gb_s": "GB/s", "_mhz": "MHz"}


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    type: Type
    doc: str = ""

    @property
    def unit(self) -> str:
        """The unit that the name ends with; empty for counts, ratios and text."""
        endings = [ending for ending in _UNITS if self.name.endswith(ending)]
        return _UNITS[max(endings, key=len)] if endings else ""


def _each(type_: Type, *names: str, doc: str = "") -> Iterator[Column]:
    return (Column(name, type_, doc) for name in names)


_LAUNCH = (Column("case", "text", "content id"), Column("repeat", "int", "launch of the case, from 0"))

# One row a launch. Failed and invalid launches have a row too.
_CASES = (
    *_LAUNCH,
    Column("suite", "text"),
    Column("label", "text", "how the case differs from the others of the suite"),
    Column("series", "text", "cases of a series differ only in size"),
    Column("base", "bool", "whether efficiencies of the series refer to it"),
    Column("scaling", "text"),
    Column("delay_injection", "text", "delays that the case injects, in words; null without any"),
    Column("status", "text", "ok failed timeout hung invalid skipped …: `launch.outcome`"),
    Column("reason", "text", "why the status is not ok"),
    *_each("int", "ranks", "threads", "nodes"),
    Column("oversubscribed", "bool", "ranks may share cores"),
    *_each("int", *DEGREES, doc="size of the axis"),
    Column("matrix", "text", "algorithm on the grid tx x ty x tz; null for one rank"),
    Column("sp", "bool"),
    Column("zero", "int", "stage of ZeRO"),
    Column("shard", "int", "ranks of dp that share a set of shards; 0: all"),
    Column("virtual_stages", "int"),
    Column("context", "text", "form of context parallelism; null without it"),
    Column("placement", "text", "of tokens over cp; null without it"),
    Column("checkpoint", "text", "what backward computes again"),
    Column("micro_batches", "int"),
    Column("schedule", "text", "null without a pipeline"),
    Column("reduction", "text", "how gradients are reduced"),
    Column("bucket_bytes", "int"),
    Column("compression", "text", "of the gradients that are reduced"),
    Column("offload", "text", "what lies in a file while it is not needed"),
    Column("model", "text", "kind"),
    *_each("int", "layers", "width", "heads", "sequence", "vocabulary", "parameters"),
    Column("dtype", "text"),
    Column("loss_scale", "text", "as asked for: none, dynamic or a number"),
    Column("attention", "text", "plain: scores are kept for backward; block: they are computed again"),
    Column("batch", "int", "global: sequences or samples of one step"),
    Column("tokens", "int", "global: targets of one step"),
    Column("optimizer", "text"),
    Column("steps", "int", "measured"),
    Column("warmup", "int", "steps before them, as asked for"),
    Column("started_unix_s", "float"),
    Column("launch_index", "int", "position in the randomised order of launches"),
    Column("wall_s", "float", "of the whole launch"),
    Column("startup_s", "float", "launch command to first warm-up step; the next five are its parts"),
    *_each("float", "import_s", "mpi_init_s", "data_prepare_s", "build_s", "roofline_s"),
    Column("warmup_s", "float"),
    Column("evaluate_s", "float", "mean of the evaluations, on the slowest rank; in no step time"),
    *_each("float", "save_s", "load_s", doc="mean of each, on the slowest rank; loads also by `save.check`"),
    Column("load_read_s", "float", "of load_s: reading files; of `broadcast` on one rank"),
    Column("load_broadcast_s", "float", "of load_s: sending to all what that rank has read"),
    Column("saved_bytes", "int", "of one saved state, all ranks"),
    *_each("int", "load_read_bytes", "load_broadcast_bytes", doc="of one load, all ranks"),
    Column("step_s", "float", "median over the steady steps: runs.step_time"),
    Column("step_resolution_s", "float", "unit of the last digit of a step time that a program printed"),
    Column("work_quantum_s", "floats", "by measured step: a fixed piece of work beside it, if asked for"),
    Column("model_flops", "float", "of one step, all ranks; attention counted causal"),
    Column("executed_flops", "float", "of one step, all ranks; what is really multiplied"),
    Column("recomputed_flops", "float", "of these: done again in backward, to keep less"),
    Column("gflops", "float", "model FLOPs over step_s, all ranks"),
    Column("gemm_peak_gflops", "float", "sum over ranks, all at once, on their own cores and threads"),
    Column("stream_gb_s", "float", "sum over ranks, all at once, on their own cores and threads"),
    Column("recording_ratio", "float", "step time with recording over without, interleaved"),
    Column("recording_call_s", "float", "cost of recording one call, its two clock readings included"),
    *_each("float", "loss_first", "loss_last"),
    Column("file_hints", "text", "of MPI-IO, that the library says it uses: name=value; name=value"),
    Column("loss_unigram", "float", "of guessing by byte frequency; text only"),
    Column("validation_losses", "floats", "of the text that is held out, at each evaluation"),
    Column("validation_steps", "ints", "steps of the training until then, warm-up included"),
    Column("losses", "floats", "every step, warm-up included"),
    Column("loss_scales", "floats", "in force in every step, warm-up included; null without one"),
    Column("skipped_steps", "ints", "steps, counted like `losses`, whose gradients overflowed"),
    Column("loss_spread", "float", "largest relative difference of a loss between ranks that compute it"),
    Column("replica_spread", "float", "largest relative difference between replicas at the end"),
    Column("dropped_share", "float", "`moe` only: choices of experts beyond their capacity, over all"),
    Column("expert_imbalance", "float", "`moe` only: choices of the busiest expert over the mean"),
    Column("weights", "floats", "`linear` only: what was learned"),
    Column("predicted_bubble", "float", "of a pipeline: idle share of the step, by FLOPs"),
    Column("peak_memory_rank", "int", "predicted to hold most; the next columns are of it"),
    *_each("int", *(f"predicted_{kind}_bytes" for kind in (*MEMORY_KINDS, "offloaded"))),
    Column("provenance", "text", "JSON: what the job found: MPI, BLAS, packages, variables"),
)

# One row per rank, step and phase. compute + wait + transfer + copy + offload = the phase's wall. What
# belongs to the whole step is the same for its phases: their walls and what is unaccounted are its wall,
# end to end.
_STEPS = (
    *_LAUNCH,
    Column("rank", "int"),
    Column("step", "int", "0 is the first measured step"),
    Column("phase", "text", "data forward backward sync update"),
    *_each("float", "wall_s", "compute_s", "transfer_s", "wait_s", "copy_s"),
    Column("hidden_s", "float", "communication under way while the rank computes: beside the others"),
    Column("offload_s", "float", "the step waited for a file to be read or written"),
    Column("offload_io_s", "float", "a thread read and wrote, meanwhile: beside the others"),
    *_each("int", "offload_read_bytes", "offload_write_bytes", doc="submitted to that thread"),
    Column("ideal_wait_s", "float", "the wait that is left on an ideal network"),
    Column("caused_wait_s", "float", "waits of other ranks for this one, summed"),
    Column("injected_delay_s", "float", "of compute_s: delay injected"),
    Column("unaccounted_s", "float", "of the step: outside its phases"),
    Column("end_s", "float", "when the step ended, since the first measured step began"),
    Column("ideal_end_s", "float", "the same, on an ideal network"),
)

# One row per rank, step, phase, axis and verb: sums over the calls.
_CALLS = (
    *_LAUNCH,
    *_each("int", "rank", "step"),
    *_each("text", "phase", "axis", "verb"),
    Column("count", "int"),
    Column("bytes", "int", "payload that this rank gave to the calls"),
    *_each("float", "transfer_s", "wait_s"),
    Column("hidden_s", "float", "of nonblocking calls: under way while the rank did something else"),
    Column("exposed_s", "float", "of nonblocking calls: inside the calls that start, test and complete them"),
    Column("ideal_wait_s", "float", "the wait that is left on an ideal network"),
    Column("clock_bound_s", "float", "error bound of the wait of one of these calls; 0 within a node"),
)

# One row per rank.
_RANKS = (
    *_LAUNCH,
    Column("rank", "int"),
    Column("host", "text"),
    Column("node", "int", "of ranks that share memory, and so a clock; numbered as they first appear"),
    Column("pid", "int"),
    Column("cpus", "text", 'affinity, as "0-3,8"'),
    Column("threads", "int", "BLAS threads got"),
    Column("kernels", "text", "fused or numpy"),
    Column("kernel_threads", "int"),
    *_each("text", "blas", "blas_version", "blas_architecture", "blas_threading"),
    Column("blas_library", "text", "that is lent to NumPy; null: its own"),
    Column("blas_thread_setter", "text", "function that sets its threads; null: none that is known"),
    Column("gemm_peak_gflops", "float"),
    Column("stream_gb_s", "float", "memory bandwidth: STREAM Add, two reads and a write"),
    Column("gemm_cores", "float", "kept busy meanwhile: CPU time of all threads over wall time"),
    Column("peak_rss_bytes", "int"),
    Column("peak_rss_of_steps", "bool", "the peak is of the measured steps; else of the process's life"),
    Column("baseline_rss_bytes", "int", "with data and libraries, before the model"),
    *_each("int", *(f"{kind}_bytes" for kind in MEMORY_KINDS), doc="counted"),
    Column("offloaded_bytes", "int", "room in the file; not in memory"),
    Column("buffers_bytes", "int", "of the pool: activations, and what of exchanges lies there"),
    Column("clock_bound_s", "float", "error bound of this rank's times against rank 0's clock"),
    Column("clock_drift", "float", "by how much faster rank 0's clock runs, as a fraction"),
    Column("clock_backwards_s", "float", "largest backward jump of this rank's clock; if any, invalid"),
    Column("t_ideal_s", "float", "the measured steps on an ideal network"),
    Column("wall_s", "float", "of the measured steps"),
    Column("unaccounted_s", "float"),
    Column("cpu_s", "float", "CPU time of all threads over the measured steps"),
    Column("thread_cpu_s", "floats", "of each thread: the main one, then the others, busiest first"),
    Column("thread_cpus", "texts", 'where each of these may run, as "0-3,8"'),
    Column("events", "int", "recorded during the measured steps"),
    Column("involuntary_context_switches", "int"),
    # Of the CPUs that the rank may run on, over the measured steps; null where the system does not tell:
    Column("steal_s", "float", "taken by the hypervisor, sum over the CPUs"),
    Column("busy_s", "float", "CPU time of all processes, sum over the CPUs"),
    Column("thermal_throttles", "int", "times that heat or power slowed a CPU down"),
    Column("cgroup_throttled_s", "float", "for which the CPU quota of the control group stopped the job"),
    Column("governor", "text", "of the clock"),
    Column("clock_mhz", "float", "mean over the CPUs, when the steps had ended"),
    Column("load_average", "float", "of the host over the last minute, then"),
)

# One row per rank, phase and class of kernels, of one step after the measured ones, in which every kernel is
# timed. `other` is what the phase computes outside kernels: its FLOPs and bytes are not counted.
_KERNELS = (
    *_LAUNCH,
    Column("rank", "int"),
    *_each("text", "phase", "kernel"),
    Column("calls", "int"),
    Column("flops", "int", "in closed form, from operands: nn.kernels.costs"),
    Column("bytes", "int", "to and from memory at least: each operand once, one updated in place twice"),
    Column("time_s", "float", "inside the kernels, without communication that goes on there"),
)

# One row per figure of merit of a workload, of launches that ended well.
_FIGURES = (
    *_LAUNCH,
    Column("figure", "text", "its name in the suite"),
    Column("value", "float", "as the program said it, in `unit`"),
    Column("resolution", "float", "unit of the last digit that the program printed; null: an exact number"),
    Column("unit", "text", "empty: none"),
    Column("better", "text", "lower or higher; null: neither"),
)

# One row per event of a rank, in the order in which they ended; -1 stands for no number. A row takes
# some 25 bytes, and there can be thousands a step: `timing.trace` says of which launches they are kept.
_EVENTS = (
    *_LAUNCH,
    *_each("int", "rank", "step"),
    Column("phase", "text", "empty outside"),
    Column("kind", "text", "step phase call …: `runs.schema.Kind`"),
    Column("label", "text", 'of a phase its action, micro-batch and part: "forward 3"; else the verb'),
    Column("axis", "text", "of calls"),
    Column("group", "int", "first rank of those that exchange with this one on the axis"),
    Column("verb", "text"),
    Column("bytes", "int", "payload that this rank gave to the call"),
    Column("request", "int", "number of a started call, by rank: joins its events"),
    Column("partner", "int", "rank that a message goes to or comes from"),
    Column("enter_s", "float", "since the first measured step began, on the clock of rank 0"),
    Column("leave_s", "float"),
    Column("post_s", "float", "of a started call: when it was started"),
    Column("wait_s", "float"),
)

TABLES: dict[Table, tuple[Column, ...]] = {
    "cases": _CASES,
    "steps": _STEPS,
    "calls": _CALLS,
    "ranks": _RANKS,
    "kernels": _KERNELS,
    "figures": _FIGURES,
    "events": _EVENTS,
}

# What schema 1 called columns and kinds of events, by their present names; the rest have kept theirs.
NAMES_OF_1 = {
    "delay_injection": "injected",
    "launch_index": "order",
    "roofline_s": "gemm_s",
    "work_quantum_s": "paces_s",
    "peak_memory_rank": "fullest_rank",
    "caused_wait_s": "caused_s",
    "injected_delay_s": "injected_s",
    "events": "notes",
    "thermal_throttles": "throttled",
    "cgroup_throttled_s": "quota_s",
    "peak_rss_of_steps": "peak_of_steps",
    "baseline_rss_bytes": "empty_rss_bytes",
    "involuntary_context_switches": "involuntary_switches",
}
KINDS_OF_1 = {
    "polled_complete": "found",
    "io_submitted": "handed",
    "io_waited": "stalled",
    "io_done": "moved",
}
