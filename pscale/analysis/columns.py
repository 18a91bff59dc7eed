"""The frames of findings, declared once: what a row is, and name, unit and meaning of every column.

Formats, CSV, JSON, docs/tables.md and the frames of the Python API follow from these declarations. `±` after
a unit declares an interval: three columns, the value, `_low` and `_high`. A line with `=` names columns that
another frame declares. Unknown is NaN in a frame, None in a row of it.
"""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pscale.analysis.stats import Estimate

Row = Any  # a named tuple of the columns of a frame, an interval as one Estimate

_DECLARATIONS = """
cases: a row a case of the suite; what was not measured is unknown
    run text name of the run, where several are reported together
    series text its series
    scaling text strong, weak or throughput
    injected text the delays injected into ranks; empty for a healthy case
    ranks count ranks
    threads count threads of a rank
    cores count ranks × threads
    batch count samples of a step, all ranks
    work number work of a step, as the suite states it
    status text ok as soon as one launch ended well, else the status of the first; pending without any
    reason text reason of that status
    launches count launches that ended well
    failed count launches that failed or are invalid
    pending count launches to come
    base flag base case of its series
    steps count steady steps, over all launches
    dropped count warm-up steps detected beyond those of the suite
    step_s s± step time
    coarse_s s unit of the last digit that the program printed, where that is most of the uncertainty
    speedup ratio± speed-up over the base case
    efficiency share± efficiency against the base case
    samples_per_s per_s± throughput
    tokens_per_s per_s± throughput in tokens
    model_flops flops model FLOPs of a step, all ranks
    gflops gflops model FLOPs over the step time, attention counted causal
    peak_fraction share executed FLOPs over the matrix-product peak of the same job
    recomputed_share share recomputed FLOPs over all executed FLOPs
    loss_first number loss of the first measured step
    loss_last number loss of the last measured step
    loss_unigram number loss of a unigram model of the same text
    startup_s s time from start to the first step
    wall_s s wall time of a launch
    parameters count parameters of the model
    peak_rss_bytes bytes peak resident memory of the largest rank
    dropped_share share choices of experts beyond their capacity
    expert_imbalance ratio choices of the busiest expert over the mean
    losses series loss of every step
    validation_losses series loss of the text that is held out, at each evaluation
    validation_steps series steps of the training until each evaluation, warm-up included
    course_s series step time by measured step, medians over launches

phases: a row a case and phase of its step; means over ranks, steps and launches
    phase text the phase
    compute_s s computing
    transfer_s s in communication calls, after all ranks have arrived
    wait_s s in communication calls, before all ranks have arrived
    wait_or_transfer_s s wait and transfer of calls where clocks do not distinguish them
    copy_s s copying into and out of communication buffers
    offload_s s waiting for data in a file
    hidden_s s communication in progress outside MPI calls; not part of the step time
    ideal_wait_s s wait that an ideal network would leave; part of the wait
    largest_rank count rank that computes most
    largest_compute_s s its computing
    step_s s mean step of the case
    inside_s s all kinds of the phase together
    share share the phase over the step

calls: a row a case, axis and verb; per rank and step, means
    axis text axis of the mesh, or communicator
    verb text kind of call
    count number calls
    bytes bytes payload
    = phases: transfer_s wait_s wait_or_transfer_s ideal_wait_s
    hidden_s s of nonblocking calls, in progress outside MPI calls
    exposed_s s of nonblocking calls, inside MPI calls
    bytes_per_s bytes_per_s payload over transfer and hidden time
    bare_bytes_per_s bytes_per_s bandwidth of the operation alone, in another run over as many ranks
    bare_share share of that, what the calls of the case achieve

ranks: a row a case and each of its three ranks that compute most; means over steps and launches
    rank count the rank
    host text its host
    = phases: compute_s wait_s transfer_s wait_or_transfer_s
    excess change computing over that of the typical rank (lower median), minus one
    phase text phase in which its computing exceeds the mean most
    phase_excess_s s by that much
    unaccounted share share of its wall time in no phase

roofline: a row a case, phase and class of kernels; per rank and step, medians of launches
    phase text the phase
    kernel text class of kernels; other is computed outside kernels
    calls number calls
    time_s s time
    time_share share of what the rank computes in the step
    flops flops FLOPs
    bytes bytes bytes read and written
    intensity number FLOPs a byte
    gflops gflops achieved GFLOP/s
    gb_s number achieved GB/s
    peak_gflops gflops matrix-product peak of a rank while all ranks are busy
    stream_gb_s number memory bandwidth of a rank while all ranks are busy
    roof_gflops gflops the smaller of peak and bandwidth × intensity
    roof_share share the larger of GFLOP/s over the peak and GB/s over the memory bandwidth
    bound text compute or memory; empty where unknown

stragglers: a row a case with a rank that the others wait for
    = ranks: rank host
    step_share share of the step that each of the others waits for it
    wait_share share of all waiting in the case
    late_steps count steps in which it is late
    steps count steps of all launches
    late_s s mean delay in those steps
    phase text phase in which it computed longer than a typical rank, most of all

loss_scaling: a row a case with a scaled loss; its first launch, warm-up steps included
    asked text dynamic, or a number
    first_scale number first scale
    last_scale number last scale
    skipped count skipped steps
    skipped_measured count of these, after the warm-up
    steps count all steps

bandwidths: a row an axis, verb and message size of bare collectives; means over ranks, steps and launches
    axis text axis of the mesh
    verb text kind of call; send is an exchange around a ring
    op text what a reduction computes; empty for other verbs
    dtype text type of the numbers
    ranks count ranks of the axis
    message_bytes bytes size of the larger array, input or output
    call_s s time of a call
    least_s s on the rank that is done first
    most_s s on the rank that is done last
    algorithm_bytes_per_s bytes_per_s size over time
    bus_bytes_per_s bytes_per_s times 2 (p - 1) / p for an all-reduce, (p - 1) / p for others but one-to-one
    hidden share of nonblocking calls, in progress while the rank computed

interference: a row a case; shares of the time of as many cores as it asks for
    others share other processes, beyond those that free cores have room for
    steal share the hypervisor
    limit share a limit on CPU time
    off_core share ranks off their cores while they computed, or several threads on one core
    cause text the largest, but of off_core its cause where that is known
    share share the share of the cause

threads: a row a case with observed threads; shares of the time of its cores, medians over launches
    threads count threads of a rank
    cpu_s texts CPU time of each thread in a step: the main thread, then the others, busiest first
    efficiency share CPU time over threads × compute wall time; an upper bound where threads spin
    used share CPU time while the rank computes
    in_mpi share all cores of the rank, while it communicates
    single share idle threads, while NumPy or Python runs on the main thread
    imbalance share idle threads, while BLAS runs on several
    off_core share the main thread kept off its core while it computes
    spins flag threads may wait for work by spinning, which is CPU time too

failures: a row a case, status and reason of launches that did not end well
    status text failed or invalid
    reason text the reason
    repeats texts rounds of these launches

warnings: a row a warning about a case, or about the run where case is empty
    kind text kind of warning
    text text the warning

efficiency: a row a case, and a row each of its phases that compute; factors multiply along the tree
    phase text phase of the step; empty for whole steps
    of_step share wall time of the phase on the rank where it is longest, over that of the step
    overall share± computation × parallel
    computation share± against the base case
    parallel share± load balance × communication
    load_balance share± mean over largest compute of a rank
    communication share± serialisation × transfer
    serialisation share± what waiting leaves on an ideal network
    transfer share± what the network leaves
    threads share CPU time of the threads over their number × compute wall time; within computation
    unaccounted share of the wall time, outside all phases

lost_time: a row a case; shares of the step that add up to one, ratios of medians over launches
    useful share± compute that the base case needs as well; without one, all compute
    threads share± idle cores of a rank while it computes, beyond the base case; unknown ones are in scaling
    outside share± start and end of launches beyond the base case, where a step is a launch; else null
    scaling share± other compute beyond that of the base case: caches, memory bandwidth, clock
    imbalance share± compute of the slowest rank beyond the mean
    serialisation share± other waiting for ranks that are late: in turn, or one after another
    transfer share± what the network adds
    wait_or_transfer share± the last two, where clocks of several nodes do not distinguish them
    copy share± copies into and out of communication buffers
    offload share± waiting for data in a file
    unaccounted share± time outside all phases

costs: a row a measured case: what it takes of the machine
    cores count cores that it holds
    core_s s± core-seconds of a step
    unit text unit of work: samples, or as the suite states it
    work number units of work of a step
    core_hours number± core-hours for a million units of work
    relative ratio± cost of a unit of work over that in the base case of its series: 1 / efficiency

evidence: a row a measured size beside the smallest of its series; of programs, of trainings if asked for
    = cases: series scaling ranks threads cores launches step_s
    nodes count nodes
    base flag smallest measured size of its series
    speedup ratio± speed-up over the smallest size
    efficiency share± efficiency against the smallest size
    target share least efficiency that is asked for
    answer text holds, undecided or falls short: the target; empty for the smallest size
    to_decide text measurements that should decide; empty where decided
    time_answer text slower, equal or undecided, for the same work; empty for the shortest time
    cost_answer text more, equal or undecided, for the same work; empty for the fewest core-hours
    timed text what is timed: a step or a launch
    unit text sample, or unit as the suite states it; empty: the work of a step of the smallest size
    per number units of work that core_hours is for
    core_hours number± core-hours for so many
    units number units of work asked for
    units_core_hours number± core-hours for these

memory: a row a case: memory of the rank that is predicted to hold most, else of that which counts most
    rank count the rank
    predicted_bytes size all kinds, predicted
    predicted_parameters_bytes size parameters
    predicted_gradients_bytes size gradients
    predicted_optimizer_bytes size state of the optimizer
    predicted_activations_bytes size activations
    predicted_exchange_bytes size buffers of communication
    predicted_offloaded_bytes size in a file beside memory
    counted_bytes size all kinds, counted by the job
    counted_parameters_bytes size parameters
    counted_gradients_bytes size gradients
    counted_optimizer_bytes size state of the optimizer
    counted_activations_bytes size activations
    counted_exchange_bytes size buffers of communication
    counted_offloaded_bytes size in a file beside memory
    measured_bytes size peak of resident memory above that of the process before it had a model
    empty_bytes size resident memory of the process before it had a model
    library_bytes size measured and not counted: memory of MPI and other libraries
    of_steps flag the peak is that of the measured steps alone

predicted: a row a case of which a prediction was recorded before its first launch; the last one
    ranks count ranks
    made_unix_s number time of the prediction, in seconds since 1970
    predicted_s s predicted step time
    low_s s least of the interval that should hold nine in ten launches
    high_s s largest of that interval
    measured_s s median step time of the launches
    error change predicted over measured step time
    launches count launches that ended well
    inside count of these, in the interval

predicted_kinds: a row a case and kind of time of a step, of the mean rank
    kind text compute, transfer, wait, copy or offload
    predicted_s s predicted
    measured_s s measured

prediction_score: a row for all of these predictions
    cases count cases
    largest_ranks count largest number of ranks
    mean_error share mean of their errors, all positive
    largest_error share largest of these
    launches count launches that ended well
    inside count of these, in the interval that should hold nine in ten

axes: a row a case and axis; losses against the whole wall time, so that factors do not multiply to it
    axis text axis of the mesh, or communicator
    parallel share serialisation × transfer: the wall time but for calls on this axis
    load_balance share computing of a rank over that of the slowest rank that it meets on the axis
    serialisation share what waiting on this axis leaves on an ideal network
    transfer share what the network of this axis leaves

bubbles: a row a case with stages of a pipeline; shares of the step, means over ranks
    schedule text schedule
    stages count stages
    chunks count parts of the model on a stage
    micro_batches count micro-batches
    predicted share idle time by the schedule, where parts cost what they multiply and messages nothing
    measured share wait in calls between stages

expectations: a row a demand and case that it is about; numbers in the unit of the row
    metric text metric or figure of merit
    unit text unit of the demand; 1 for a share or ratio
    demand text the demand, as the suite states it
    answer text holds, undecided, falls short, or unknown where nothing was measured
    value number± measured value
    reference number value of the file of references
    lower number lower bound
    upper number upper bound
    text text reason of the answer
    to_decide text measurements that should decide; empty where decided

verdicts: a row a series, about its largest measured case; without any, the case is empty
    = cases: series scaling injected ranks threads step_s samples_per_s efficiency
    status text status of the case; without one failed, or pending where nothing has run
    reason text reason of the first failure, where nothing was measured
    one_size flag no other case of the series was measured
    base flag the case is its own base case
    base_label text label of the base case
    base_status text its status; empty without a base case
    base_ranks count its ranks
    base_threads count its threads of a rank
    base_step_s s its step time
    larger count larger cases without a result
    missing_ranks count ranks of the largest of them
    missing_threads count its threads of a rank
    missing_status text its status
    demand text target of the efficiency
    answer text holds, undecided or falls short; without a target, undecided where the interval is too wide
    to_decide text measurements that should decide whether the target is met; empty where decided
    interference text main interference where it may explain the loss, of which no cause is then named
    interference_share share its share of the time of the cores
    parallel share± parallel efficiency within a step
    cause text main loss, a column of lost_time; empty where none reaches 1 % of the step
    share share± its share of the step; unknown where steps have no breakdown
    slow_steps flag the share includes slow steps, which the efficiency does not
    firm flag the interval of the share is clear of 0 and of the second loss
    second text second loss, where it reaches 1 % of the step and the first is not firm
    second_share share± its share of the step
    cause_to_decide text measurements that should decide which loss is the main one
    phase text phase with most of the loss
    axis text axis of the mesh with most of the loss
    axes count axes on which ranks communicate
    scaling_text text the efficiency and the answer in a sentence
    loss_text text the main loss in a sentence
    meaning text its origin
    advice text what to do about it

ranking: a row a plan or split of cores, by groups of the same work, fastest first; losses: shares of its step
    choice text plan, or split of cores into ranks and threads
    group text words that the labels of a group share; of splits, how many cores
    name text other words of the label; of splits, ranks and threads
    = cases: ranks threads step_s
    place count place in the group; those equal to the fastest share the first
    answer text slower, equal or undecided; empty for the fastest, the reference
    ratio ratio± step time over that of the fastest
    rounds_to_decide count more rounds that should decide; unknown where decided or no number is known to
    decide_s s wall time of these rounds
    compute share compute
    exchange share transfer, and wait or transfer
    bubble share waiting for other stages of a pipeline
    wait share other waiting
    copies share copies into and out of communication buffers
    offload share waiting for data in a file
    extra share compute beyond the one that computes least; 0 where ranks share cores
    loss text the largest of these but compute, where it is 1 % of the step or more

delay_costs: a row a case with injected delays that was measured without them too; means over all steps
    injected text the delays
    step_s s step time
    healthy_s s step time without them
    change change± change of the step; an interval where every step is delayed
    answer text faster, slower, equal, or undecided as always where not every step is delayed
    injected_s s delay of a step, in the rank with most
    passed_on share change of the step over that delay

crossings: a row a variant and value of a swept number, beside the first variant; in pairs of rounds
    field text the number, as conditions name it
    common text words that the labels of both share
    reference text other words of the labels of the reference
    variant text other words of the labels of the variant
    reference_case text id of the case of the reference
    value number value of the number
    = compared: a_s b_s ratio a_launches p_corrected answer launches_needed
    turns_after number the last decided value before, if for the other variant: a crossover is between

choices: a row a case of those that differ in one choice alone, beside the reference; of a rank and step
    choice text compression, precision, offload, prefetch or optimizer
    setting text what was chosen; the reference is without compression or offload, in float32, or the fastest
    reduce text number format of reductions, beside a precision
    lr number learning rate, beside an optimizer
    step_s s step time
    step_ratio ratio± over that of the reference
    answer text faster, slower, equal or undecided; empty for the reference
    sent_bytes bytes payload of all calls
    sent_ratio ratio over that of the reference
    held_bytes size memory of the fullest rank
    held_ratio ratio over that of the reference
    state_bytes size state of the optimizer on the fullest rank
    memory_bytes size peak of resident memory of the fullest rank, above that of the process without a model
    memory_ratio ratio over that of the reference
    file_bytes size held in a file
    read_bytes bytes read from it
    written_bytes bytes written to it
    bytes_per_s bytes_per_s both, a second of the thread that moves them
    io_s s moving
    hidden_s s of that: the step goes on meanwhile
    stall_s s the step waits for it
    data_s s the whole phase data
    sync_compute_s s computing of the synchronisation: encoding, decoding, summing
    update_s s the whole update, with its communication
    update_compute_s s computing of the update
    loss_last number loss of the last measured step
    loss_more change more than that of the reference; of optimizers, than the lowest

hints: a row a case and MPI-IO hint that it asks for
    hint text name of the hint
    asked text value that was asked for
    used text value that the library says it uses; empty if it knows none
    answer text taken or not taken

saved: a row a case that saves its state or loads one; times of the slowest rank, means over launches
    save_s s saving the state once, outside the step time
    saved_bytes size one state, all ranks
    load_by text who reads: every rank, or one that sends all to all
    load_s s± loading it once
    load_read_s s of that: reading files
    load_broadcast_s s of that: sending to all what one rank has read
    load_read_bytes size read from files by all ranks
    load_broadcast_bytes size sent to all
    load_ratio ratio± over loading by every rank for itself
    answer text faster, slower, equal or undecided; empty for the reference

time_to_loss: a row a training of those that reach one validation loss; means over seeds
    ranks count ranks
    batch count global batch
    seeds count cases that differ in the seed alone
    target number validation loss that all trainings of this model and data reach
    to_loss_steps number± steps of the training until then, between two evaluations as on a line
    to_loss_s s± these steps × the mean step time, over seeds
    to_loss_core_hours number± core-hours until then
    over ratio± time over the shortest with fewer cores
    answer text faster, slower, equal or undecided; empty without a training on fewer cores

merits: a row a case and figure of merit of its program; means over launches
    figure text name of the figure
    value number± its value
    unit text its unit
    better text lower, higher or empty
    launches count launches that ended well
    coarse number unit of the last digit that was printed, where that is most of the uncertainty

wait: a row a rank and step of the first launch that ended well of the case that waits most
    repeat count the launch
    rank count the rank
    step count measured step
    = phases: wait_s wait_or_transfer_s compute_s

models: a row a series that compares sizes, or curve over a swept number
    model count number of the model
    series text the series, or what the cases of a curve have in common
    scaling text strong or weak; empty over a swept number
    unit text unit of sizes: ranks, or cores where ranks have differing numbers of threads; or the number
    threads count cores of one unit
    sizes texts measured sizes
    asked texts sizes asked for
    refusal text reason why there are no laws
    first text phase that costs most beyond ideal scaling at the largest size predicted; none, or unknown
    first_share share the phase over all phases there
    first_measured_share share the same at the largest measured size

laws: a row a model and part of the step; shares are of the step
    = models: model series unit
    part text step, a phase, or a kind of time (mean over ranks)
    law text name of the law: amdahl, gustafson, usl, or pmnf for other sums
    formula text the law, p for the size
    terms texts its terms, {} for the coefficient
    coefficients_s texts their coefficients in seconds
    r_squared number R²; unknown of a constant, which explains no difference
    error share root mean square of the errors at sizes left out of the fit
    misfit share root mean square, by degrees of freedom, of what the law misses
    scatter share standard deviation of launches; unknown where sizes have one each
    fits flag that explains the misfit
    measured_s texts measured times, size by size

law_predictions: a row a model, part of the step and size
    = models: model series unit
    = laws: part
    size number the size
    cores count its cores
    time_s s± time by the law, with the interval of a measurement there; none beyond
    efficiency share± efficiency of whole steps
    beyond flag more than four times the largest measured size
    curve flag on the line of the figure; else a size to predict

named_laws: a row a model and law with a name, fitted to its steps by least squares
    = models: model series unit
    law text amdahl, gustafson or usl
    error share root mean square of the errors at sizes left out of the fit
    serial_fraction share± serial fraction of Amdahl's and Gustafson's law
    contention share± contention, sigma of the universal law
    coherency share± coherency, kappa of the universal law
    peak number size of the largest throughput by the universal law

projections: a row a model and size asked for, predicted from the parts of measured steps
    = models: model series
    ranks count ranks
    step_s s± step time with the interval of nine in ten launches; none beyond checked_ranks
    law_s s± the same by the law, with its 95 % interval
    answer text agree or disagree: whether the two allow the same time; empty where not known
    first_loss text kind of time, other than computing, that takes most
    checked_ranks count ranks up to which predictions are checked
    notes texts assumptions
    refusal text reason why nothing is predicted

timeline: a row a span of a typical step of traced launches: what a rank did, from when to when
    = wait: repeat step
    stages count stages of the pipeline
    length_s s length of the step
    rank count the rank; of very many some, evenly spread
    kind text phase, or wait, exchange, copy, offload, injected, which lie in phases
    micro count micro-batch, where it is about one
    part count part of the model
    start_s s start, since the first rank began the step
    stop_s s end

what_if: a row a case and network on which its traced launches were replayed; medians over launches
    network text the network
    measured_s s measured mean step
    replayed_s s the same step, replayed on the network as it was: how far the replay is to be trusted
    expected_s s the step on the network asked about
    change change of the step, against the replay
"""
_OF_RUNS = """
compared: a row a case of two runs, or of two variants of one, B beside A
    matched_by text id: the same work; label: the same name, though something differs; size: in one run
    a_s s± step time of A, the reference
    b_s s± step time of B
    a_launches count launches of A that are compared
    b_launches count launches of B that are compared
    ratio ratio± B over A
    effect number Cliff's delta: share of pairs of launches in which B is slower, less faster
    test text the test
    p number chance of such a difference between equals
    p_corrected number chance of such a difference between equals, corrected for the number of tests
    detectable change difference that would have been seen 8 times in 10
    launches_needed count launches of each that see the least relevant difference 8 times in 10
    answer text faster, slower, equal or undecided: B
    scatter number standard deviation of the logarithms of launches, where the pace of the machine is used
    scatter_at_pace number the same at one pace of the machine, which is what is compared
    pace_slope number relative change of the step time over that of the pace
    pace_ratio ratio time of the fixed work in B over that in A
    lacks_pace flag the pace of the machine could be measured and was not
    unlike texts what differs, so that the pace of the machine is not used

missing: a row a case that is not compared
    run text the run that lacks it, A or B; both: it is other work
    reason text the reason

histories: a row a case of a suite, over all runs that computed the same as the newest
    runs texts names of the runs
    steps_s series step time of each run, at one pace of the machine
    levels series levels: first run, run behind the last, step time
    step_s s step time of the newest level
    normal_s s step time of the normal level, the best since the last that was accepted
    ratio ratio± newest level over the normal one
    answer text faster, slower, equal or undecided: the newest level; faster than what was normal before
    gain share of the step time, what the newest level saves where it is faster
    lone change the newest run alone beyond its level, where that is much
    detectable change change that two runs would show 8 times in 10; unknown from few runs
    counter text a counter that has grown since its least; empty where none has
    counter_before number its least
    counter_after number its newest value
    counters_more count other counters that have grown
    since text the run with which the newest level began; empty where all are at one
    cause text what else changed with that run
    other_work count runs that did other work, which are left out

level_changes: a row a change of the step time of a case
    run text the first run of the new level
    before_s s step time before
    after_s s step time after
    ratio ratio± after over before
    p number chance of such a change without any
    cause text what else changed with that run
    parts text parts of the step that changed most

counter_changes: a row a change of what is counted exactly of a case
    run text the run
    counter text the counter
    before number value before
    after number value after
    cause text what else changed with that run
"""


class Column(NamedTuple):
    """A column of a frame: its unit, whether it has an interval, and its meaning."""

    unit: str
    bounded: bool
    meaning: str


class Declaration(NamedTuple):
    """A frame: its meaning and its columns by name; `case` and `label` first, where rows are about cases."""

    meaning: str
    columns: Mapping[str, Column]


UNITS = {  # of a column: what its numbers are
    "text": "text",
    "texts": "several values",
    "series": "several numbers; not in CSV",
    "flag": "true or false",
    "count": "a whole number",
    "number": "a number",
    "ratio": "a ratio",
    "share": "a fraction",
    "change": "a relative change",
    "s": "seconds",
    "bytes": "bytes",
    "size": "bytes, a whole number",
    "bytes_per_s": "bytes a second",
    "per_s": "per second",
    "flops": "FLOPs",
    "gflops": "GFLOP/s",
}
_CASE = {"case": Column("text", False, "id of the case"), "label": Column("text", False, "label of the case")}


def _declared(text: str, others: Mapping[str, Declaration]) -> dict[str, Declaration]:
    frames: dict[str, Declaration] = {}
    for block in text.strip().split("\n\n"):
        (name, meaning), *lines = block.split(": ", 1), *block.splitlines()[1:]
        columns = dict(_CASE)
        for line in lines:
            column, unit, of = line.split(maxsplit=2)
            if column == "=":
                columns |= {each: {**others, **frames}[unit.rstrip(":")].columns[each] for each in of.split()}
            else:
                columns[column] = Column(unit.rstrip("±"), unit.endswith("±"), of)
        if "model" in columns or name == "prediction_score":
            columns = {each: of for each, of in columns.items() if each not in _CASE}
        frames[name] = Declaration(meaning.splitlines()[0], columns)
    return frames


_OTHERS = _declared(_OF_RUNS, {})
FRAMES = _declared(_DECLARATIONS, _OTHERS)
TABLES = FRAMES | _OTHERS  # with those of comparisons of runs
_RANKED = {  # whose rows have an order of their own
    *("expectations", "verdicts", "ranking", "crossings"),
    *("choices", "saved", "time_to_loss"),
    *("compared", "missing", "histories", "level_changes", "counter_changes"),
}
SERIES = {  # columns that are not in CSV
    name: [column for column, each in declared.columns.items() if each.unit == "series"]
    for name, declared in TABLES.items()
}


def frame(
    name: str, rows: pd.DataFrame | Iterable[Mapping[str, Any] | Row], labels: Mapping[str, str]
) -> pd.DataFrame:
    """Return the declared columns of `rows`, in the order of the cases in `labels`, or of a ranking.

    Columns are lists and arrays here: a frame has dozens, and pandas takes longer for each than for its rows.
    """
    count, values_of = _columns(rows)
    cases = [str(case) for case in values_of("case")]
    known: dict[str, Any] = {}
    for column, declared in TABLES[name].columns.items():
        values = values_of(column)
        if column == "label":
            values = [labels.get(case, label) for case, label in zip(cases, values, strict=True)]
        known |= _bounds(column, values) if declared.bounded else {column: _typed(values, declared.unit)}
    found = pd.DataFrame(known, index=range(count))
    order = {case: place for place, case in enumerate(labels)}
    places = [order.get(case, -1) for case in cases]  # what is about no case comes first
    if name in _RANKED or places == sorted(places):
        return found
    return found.iloc[np.argsort(places, kind="stable")].reset_index(drop=True)


def _columns(
    rows: pd.DataFrame | Iterable[Mapping[str, Any] | Row],
) -> tuple[int, Callable[[str], Sequence[Any] | NDArray[Any]]]:
    """Return the number of rows, and a function of a column's name that returns its values."""
    if isinstance(rows, pd.DataFrame):
        absent = [None] * len(rows)
        plain = {str(name): column for name, column in rows.items()}

        def of_frame(name: str) -> Sequence[Any] | NDArray[Any]:
            column = plain.get(name)
            if column is None:
                return absent
            return column.to_numpy() if column.dtype.kind in "fiub" else column.tolist()

        return len(rows), of_frame
    mappings: list[Mapping[str, Any]] = [getattr(row, "_asdict", lambda row=row: row)() for row in rows]
    return len(mappings), lambda name: [row.get(name) for row in mappings]


def _bounds(name: str, values: Iterable[Estimate | float | None]) -> dict[str, NDArray[np.float64]]:
    """Return the three columns of an interval; numbers alone have none."""
    each = [Estimate(value=value) if isinstance(value, float) else value for value in values]
    return {
        f"{name}{end}": np.array([getattr(value, part, None) for value in each], np.float64)
        for end, part in (("", "value"), ("_low", "low"), ("_high", "high"))
    }


def _typed(values: Sequence[Any] | NDArray[Any], unit: str) -> Any:
    """Return values as texts, flags, whole numbers or numbers; unknown ones are missing, a text is empty."""
    if unit == "text":
        return np.array(["" if _unknown(value) else str(value) for value in values], object)
    if unit in ("texts", "series"):
        found = np.empty(len(values), object)
        found[:] = [() if value is None else tuple(value) for value in values]
        return found
    if unit == "flag":
        gone = np.array([_unknown(value) for value in values], bool)
        flags = np.array([value is not pd.NA and bool(value) for value in values], bool)
        return pd.arrays.BooleanArray(flags & ~gone, gone) if gone.any() else flags
    if not isinstance(values, np.ndarray):
        values = [np.nan if _unknown(value) else value for value in values]
    numbers = np.asarray(values, np.float64)
    if unit not in ("count", "size"):
        return numbers
    unknown = np.isnan(numbers)
    whole = np.where(unknown, 0, numbers).astype(np.int64)
    return pd.arrays.IntegerArray(whole, unknown) if unknown.any() else whole


def _unknown(value: Any) -> bool:
    return value is None or value is pd.NA or value != value  # noqa: PLR0124 - NaN alone differs from itself


def rows(name: str, table: pd.DataFrame) -> list[Row]:
    """Return the rows of a frame as named tuples: unknown is None, and an interval one Estimate."""
    columns = TABLES[name].columns
    return [
        _row(name)(*values)
        for values in zip(*(_cells(table, *each) for each in columns.items()), strict=True)
    ]


def row(frame: str, /, **values: Any) -> Row:
    """Return a row of a frame; what is not given is unknown."""
    return _row(frame)(**dict.fromkeys(TABLES[frame].columns) | values)


@cache
def _row(name: str) -> type:
    members = {"declared": TABLES[name].columns, "__slots__": ()}
    return type(name, (namedtuple(name, TABLES[name].columns),), members)


def _cells(table: pd.DataFrame, name: str, column: Column) -> Sequence[Any]:
    if column.bounded:
        ends = (plain(table[f"{name}{end}"]) for end in ("", "_low", "_high"))
        return [
            None if value is None else Estimate(value=value, low=low, high=high)
            for value, low, high in zip(*ends, strict=True)
        ]
    return plain(table[name])


def plain(column: pd.Series[Any]) -> list[Any]:
    """Return the values of a column, unknown ones as None."""
    values, unknown = column.tolist(), column.isna().to_numpy()
    if not unknown.any():
        return values
    return [None if gone else value for value, gone in zip(values, unknown, strict=True)]


def reference() -> str:
    """Return docs/tables.md: every frame with the units and meanings of its columns."""
    parts = [_HEAD]
    for name, (meaning, columns) in TABLES.items():
        lines = [
            f"| `{column}`{' ±' * each.bounded} | {UNITS[each.unit]} | {each.meaning} |"
            for column, each in columns.items()
            if column not in _CASE
        ]
        heading = f"## {name}\n\n{meaning[0].upper()}{meaning[1:]}."
        parts.append("\n".join((heading, "", "| column | unit | meaning |", "|---|---|---|", *lines)))
    return "\n\n".join(parts) + "\n"


_HEAD = """# Tables of a report

<!-- written by `make manual` from pscale/analysis/columns.py -->

Each is a file of `pscale report --format csv`, a list of `--format json`, and a data frame in
[Python](python.md): `pscale.load(run).cases`. The first two columns are `case`, the id of a case, and
`label`, but in tables of models and scores; `cases` has a column more for each degree of the plan and each
setting that varies. `±` marks a value with a 95 % interval, whose bounds are the columns `_low` and `_high`
behind it. Unknown is NaN, empty in CSV, null in JSON.
`compared` and `missing` are those of `pscale compare`, the last three those of `pscale history`."""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
