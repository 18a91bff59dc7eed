"""The columns of a run's tables. Names and units are promised; new columns may be added.

All times are seconds, all sizes bytes; `case` is the content id, `repeat` counts launches of a case from 0.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

VERSION = 1

Table = Literal["cases", "steps", "calls", "ranks", "events"]

_text, _whole, _real = pa.string(), pa.int64(), pa.float64()
_key = [("case", _text), ("repeat", _whole)]


def _schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    metadata = {"pscale_schema": str(VERSION)}
    return pa.schema([pa.field(name, kind) for name, kind in columns], metadata=metadata)


# One row a launch. Failed and invalid launches have a row too, with nulls where nothing was measured.
CASES = _schema(
    *_key,
    ("suite", _text),
    ("label", _text),
    ("series", _text),  # cases of a series differ in size alone
    ("base", pa.bool_()),
    ("scaling", _text),
    ("injected", _text),  # what makes ranks late on purpose; null for a healthy case
    # ok failed timeout hung invalid skipped; of jobs: cancelled preempted node_failed vanished
    ("status", _text),
    ("reason", _text),
    ("ranks", _whole),
    ("threads", _whole),
    ("nodes", _whole),
    ("oversubscribed", pa.bool_()),
    *((name, _whole) for name in ("dp", "tp", "pp", "cp", "ep", "tx", "ty", "tz")),
    ("matrix", _text),  # algorithm on the grid tx x ty x tz; null for one rank
    ("sp", pa.bool_()),
    ("zero", _whole),
    ("shard", _whole),  # ranks of dp that share a set of shards; 0: all
    ("virtual_stages", _whole),
    ("context", _text),  # null without context parallelism
    ("placement", _text),
    ("checkpoint", _text),  # what backward computes again
    ("micro_batches", _whole),
    ("schedule", _text),  # null without a pipeline
    ("reduction", _text),
    ("bucket_bytes", _whole),
    ("compression", _text),  # of gradients that are summed
    ("offload", _text),  # what lies in a file while nobody needs it
    ("model", _text),  # kind
    *((name, _whole) for name in ("layers", "width", "heads", "sequence", "vocabulary", "parameters")),
    ("dtype", _text),
    ("loss_scale", _text),  # as asked for: none, dynamic or a number
    ("attention", _text),  # plain: scores are kept for backward; block: they are computed again
    ("batch", _whole),  # global: sequences or samples of one step
    ("tokens", _whole),  # global: targets of one step
    ("optimizer", _text),
    ("steps", _whole),  # measured
    ("warmup", _whole),  # dropped, as asked
    ("started_unix_s", _real),
    ("order", _whole),  # place in the randomised order of launches
    ("wall_s", _real),  # of the whole launch
    ("startup_s", _real),  # launch command to first warm-up step; the next five are its parts
    ("import_s", _real),
    ("mpi_init_s", _real),
    ("data_prepare_s", _real),
    ("build_s", _real),
    ("gemm_s", _real),
    ("warmup_s", _real),
    ("step_s", _real),  # median over the measured steps
    ("paces_s", pa.list_(_real)),  # by measured step: a fixed piece of work beside it; null unless asked for
    ("model_flops", _real),  # of one step, all ranks; attention counted causal
    ("executed_flops", _real),  # of one step, all ranks; what is really multiplied
    ("recomputed_flops", _real),  # of these: done again in backward, to keep less
    ("gflops", _real),  # model FLOPs over step_s, all ranks
    ("gemm_peak_gflops", _real),  # sum over ranks, all computing at once, on their own cores and threads
    ("recording_ratio", _real),  # step time with recording over without, interleaved
    ("recording_call_s", _real),  # cost of noting one call, its two readings of the clock included, alone
    ("loss_first", _real),
    ("loss_last", _real),
    ("loss_unigram", _real),  # of guessing by byte frequency; text only
    ("losses", pa.list_(_real)),  # every step, warm-up included
    ("loss_scales", pa.list_(_real)),  # in force in every step, warm-up included; null without one
    ("skipped_steps", pa.list_(_whole)),  # steps, counted like `losses`, whose gradients overflowed
    ("loss_spread", _real),  # largest relative difference of a loss between ranks that compute the same
    ("replica_spread", _real),  # largest relative difference between replicas at the end
    ("dropped_share", _real),  # `moe` only: choices of experts that found no place, over all
    (
        "expert_imbalance",
        _real,
    ),  # `moe` only: choices of the busiest expert over the mean, per step and block
    ("weights", pa.list_(_real)),  # `linear` only: what was learned
    ("predicted_bubble", _real),  # of a pipeline: idle share of the step, if parts cost what they multiply
    ("fullest_rank", _whole),  # which one is predicted to hold most; the next columns are of it
    *(
        (f"predicted_{kind}_bytes", _whole)
        for kind in ("parameters", "gradients", "optimizer", "activations", "exchange")
    ),
    ("predicted_offloaded_bytes", _whole),  # room in the file; not in memory
    ("provenance", _text),  # JSON: what the job found: MPI, BLAS, packages, variables
)

# One row per rank, step and phase. compute + wait + transfer + copy + offload = the phase's wall. What
# belongs to the whole step is the same for its phases: their walls and what is unaccounted are its wall,
# end to end.
STEPS = _schema(
    *_key,
    ("rank", _whole),
    ("step", _whole),  # 0 is the first measured step
    ("phase", _text),  # data forward backward sync update
    ("wall_s", _real),
    *((name, _real) for name in ("compute_s", "transfer_s", "wait_s", "copy_s", "hidden_s")),
    ("offload_s", _real),  # the step waited for a file to be read or written
    ("offload_io_s", _real),  # a thread read and wrote, meanwhile: beside the others, not added
    ("offload_read_bytes", _whole),  # handed to that thread
    ("offload_write_bytes", _whole),
    ("ideal_wait_s", _real),  # the wait that is left on a network that costs nothing
    ("caused_s", _real),  # waits of other ranks, added up, for this one to come to its calls
    ("injected_s", _real),  # of compute_s: burnt on purpose
    ("unaccounted_s", _real),  # of the step: outside its phases
    ("end_s", _real),  # when the step ended, since the first measured step began
    ("ideal_end_s", _real),  # the same, on a network that costs nothing
)

# One row per rank, step, phase, axis and verb: sums over the calls.
CALLS = _schema(
    *_key,
    ("rank", _whole),
    ("step", _whole),
    ("phase", _text),
    ("axis", _text),
    ("verb", _text),
    ("count", _whole),
    ("bytes", _whole),  # payload handed to the call by this rank
    ("transfer_s", _real),
    ("wait_s", _real),
    ("hidden_s", _real),  # of started calls: under way while the rank did something else
    ("exposed_s", _real),  # of started calls: inside the calls that start, ask for and complete them
    ("ideal_wait_s", _real),  # the wait that is left on a network that costs nothing
    ("clock_bound_s", _real),  # how far the wait of one of these calls may be off; 0 within a node
)

# One row per rank.
RANKS = _schema(
    *_key,
    ("rank", _whole),
    ("host", _text),
    ("node", _whole),  # of ranks that share memory, and so a clock; numbered as they first appear
    ("pid", _whole),
    ("cpus", _text),  # affinity, as "0-3,8"
    ("threads", _whole),  # BLAS threads got
    ("kernels", _text),  # fused or numpy
    ("kernel_threads", _whole),
    ("blas", _text),
    ("blas_version", _text),
    ("blas_architecture", _text),
    ("blas_threading", _text),
    ("gemm_peak_gflops", _real),
    ("gemm_cores", _real),  # kept busy meanwhile: CPU time of all threads over wall time
    ("peak_rss_bytes", _whole),
    ("peak_of_steps", pa.bool_()),  # the peak is that of the measured steps; else that of the process's life
    ("empty_rss_bytes", _whole),  # with data and libraries, before the model
    *(
        (f"{kind}_bytes", _whole)  # counted
        for kind in ("parameters", "gradients", "optimizer", "activations", "exchange")
    ),
    ("offloaded_bytes", _whole),  # room in the file; not in memory
    ("buffers_bytes", _whole),  # of the pool: activations, and what of exchanges lies there
    ("clock_bound_s", _real),  # how far this rank's times may be off from those of rank 0's clock
    ("clock_drift", _real),  # by how much faster rank 0's clock runs, as a fraction
    ("clock_backwards_s", _real),  # by which this rank's own clock fell, at most; the launch is invalid then
    ("t_ideal_s", _real),  # the measured steps on a network that costs nothing
    ("wall_s", _real),  # of the measured steps
    ("unaccounted_s", _real),
    ("cpu_s", _real),  # CPU time of all threads over the measured steps
    ("thread_cpu_s", pa.list_(_real)),  # of each thread: the main one, then the others, busiest first
    ("thread_cpus", pa.list_(_text)),  # where each of these may run, as "0-3,8"
    ("notes", _whole),  # of calls, questions, copies, phases and steps, made during the measured steps
    ("involuntary_switches", _whole),
    # Of the CPUs that the rank may run on, over the measured steps; null where the system does not tell:
    ("steal_s", _real),  # kept back by the hypervisor, sum over the CPUs
    ("busy_s", _real),  # CPU time of all processes, sum over the CPUs
    ("throttled", _whole),  # times that heat or power slowed a CPU down
    ("quota_s", _real),  # for which the limit of the control group held the job back
    ("governor", _text),  # of the clock
    ("clock_mhz", _real),  # mean over the CPUs, when the steps had ended
    ("load_average", _real),  # of the host over the last minute, then
)

# One row per note of a rank, in the order in which they ended; -1 stands for no number. Only where the suite
# says `trace: true`: a row takes some 25 bytes, and there can be thousands a step.
EVENTS = _schema(
    *_key,
    ("rank", _whole),
    ("step", _whole),
    ("phase", _text),  # empty outside
    ("kind", _text),  # step phase call … copied injected handed stalled moved: `results.events`
    ("label", _text),  # of a phase its action, micro-batch and part: "forward 3", "weight 0.2"; else the verb
    ("axis", _text),  # of calls
    ("group", _whole),  # first rank of those that exchange with this one on the axis
    ("verb", _text),
    ("bytes", _whole),  # payload handed to the call by this rank
    ("request", _whole),  # number of a started call, by rank: joins what is noted of it
    ("partner", _whole),  # rank that a message goes to or comes from
    ("enter_s", _real),  # since the first measured step began, on the clock of rank 0
    ("leave_s", _real),
    ("post_s", _real),  # of a started call: when it was started
    ("wait_s", _real),
)

TABLES: dict[Table, pa.Schema] = {
    "cases": CASES,
    "steps": STEPS,
    "calls": CALLS,
    "ranks": RANKS,
    "events": EVENTS,
}
