import numpy as np

from pscale.worker.host import HostUsage
from pscale.worker.observe import Usage, without
from pscale.worker.pace import Seamless

BEGUN, LENGTHS = np.array([100, 300, 700]), np.array([50, 100, 10])


def test_steps_follow_each_other_once_the_pauses_are_out_of_time():
    cut = Seamless(begun_ns=BEGUN, lengths_ns=LENGTHS)
    assert cut(np.array([90, 100, 150, 300, 400, 600, 700, 710, 720])).tolist() == [
        *(90, 100, 100),
        *(250, 250, 450),
        *(550, 550, 560),
    ]
    assert cut.at(700) == 550


def test_what_a_rank_pauses_longer_than_all_others_stays_and_time_never_goes_back():
    cut = Seamless(begun_ns=BEGUN, lengths_ns=LENGTHS)  # this one went on at 155 after the first pause
    assert cut.at(155) - cut.at(100) == 5
    assert (np.diff(cut(np.arange(1000))) >= 0).all()


def test_what_pauses_used_counts_in_no_account_of_the_steps():
    before, after, last = used(1.0, 3), used(1.5, 4), used(4.0, 9)
    left = without(last, before, after)
    assert (left.cpu_s, left.thread_cpu_s["7"], left.involuntary_switches) == (3.5, 3.5, 8)
    assert (left.host.busy_s, left.host.steal_s, left.host.load_average) == (3.5, None, 9)


def used(cpu_s, switches):
    host = HostUsage(
        busy_s=cpu_s,
        steal_s=None,
        throttled=None,
        quota_s=None,
        governor=None,
        clock_mhz=None,
        load_average=switches,
    )
    return Usage(
        cpu_s=cpu_s,
        thread_cpu_s={"7": cpu_s},
        thread_cpus={"7": "0"},
        main_thread="7",
        involuntary_switches=switches,
        host=host,
    )
