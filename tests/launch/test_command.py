import re
import shlex
from dataclasses import replace

import pytest

from pscale.config import Case, Launch, Omp, Plan
from pscale.errors import LaunchError, PlanError
from pscale.launch.command import command
from pscale.launch.launcher import Launcher
from pscale.launch.machine import Machine

HYDRA = Launcher(path="/opt/mpich/bin/mpiexec", flavour="mpich", version="5.0.2")
OPENMPI = Launcher(path="/opt/openmpi/bin/mpiexec", flavour="openmpi", version="5.0.11")
OPENMPI_4 = Launcher(path="/usr/bin/mpirun", flavour="openmpi", version="4.1.4")
INTEL = Launcher(path="/opt/intel/mpiexec", flavour="intel", version="2021.10")
THREADS = (
    "BLIS_NUM_THREADS GOMAXPROCS JULIA_NUM_THREADS MKL_NUM_THREADS NUMBA_NUM_THREADS NUMEXPR_NUM_THREADS "
    "NVPL_BLAS_NUM_THREADS OMP_NUM_THREADS OPENBLAS_NUM_THREADS POLARS_MAX_THREADS RAYON_NUM_THREADS "
    "TBB_NUM_THREADS VECLIB_MAXIMUM_THREADS"
)


def machine(cores: int = 8, siblings: int = 1, **facts: object) -> Machine:
    cpus = tuple(tuple(range(core, cores * siblings, cores)) for core in range(cores))
    facts = {"host": "host", "cpu_model": "CPU", "core_cpus": cpus, "memory_bytes": 2**34, **facts}
    return Machine(**facts)  # type: ignore[arg-type]


def case(ranks: int, threads: int = 1, **launch: object) -> Case:
    plan, how = Plan(dp=ranks), Launch(**launch)  # type: ignore[arg-type]
    return Case(suite="s", label="the case", ranks=ranks, threads=threads, plan=plan, launch=how)


def line(
    asked: Case, launcher: Launcher, here: Machine | None = None, *, root: bool = False, **environ: str
) -> str:
    """Return what follows the launcher, as a shell would read it."""
    words = command(asked, launcher, ["JOB"], here or machine(), environ=environ, root=root).argv
    count = len(launcher.opening)
    assert words[:count] == launcher.opening
    return shlex.join(words[count:])


LAB = machine(2, nodes=3, hosts={"a": 4, "b": 2, "c": 2})


@pytest.mark.parametrize(
    ("launcher", "asked", "golden"),
    [
        (HYDRA, case(3), "-hosts a:3 -bind-to core:1 -n 3 JOB"),
        (HYDRA, case(5), "-hosts a:3,b:2 -bind-to core:1 -n 5 JOB"),
        (HYDRA, case(6), "-hosts a:4,b:2 -bind-to core:1 -n 6 JOB"),
        (HYDRA, case(4, 2), "-hosts a:2,b:1,c:1 -bind-to core:2 -n 4 JOB"),
        (HYDRA, case(3, ranks_per_node=2), "-hosts a:2,b:1 -bind-to core:1 -n 3 JOB"),
        (HYDRA, case(9, oversubscribe=True), "-hosts a:3,b:3,c:3 -bind-to none -n 9 JOB"),
        (OPENMPI, case(3, 2), "--host a:2,b:1 --map-by slot:PE=2 --bind-to core -x SAID -n 3 JOB"),
        (OPENMPI, case(5, bind="numa"), "--host a:3,b:2 --map-by slot --bind-to numa -x SAID -n 5 JOB"),
        (
            OPENMPI,
            case(9, oversubscribe=True),
            "--host a:3,b:3,c:3 --map-by slot --bind-to none -x SAID --oversubscribe -n 9 JOB",
        ),
        (INTEL, case(3), "-hosts a -ppn 3 -n 3 JOB"),
        (INTEL, case(5), "-hosts a,b -ppn 3 -n 5 JOB"),
    ],
)
def test_hosts_of_the_user_are_filled_evenly_up_to_their_cores(launcher, asked, golden):
    words = line(asked, launcher, LAB, SAID="x y", PMIX_A="", PWD="/")
    assert re.sub(r"( -x \w+)+", " -x SAID", words) == golden
    named = re.findall(r"-x (\w+)", words)
    assert {*named} == ({"SAID", *THREADS.split()} if launcher == OPENMPI else set())


def test_hosts_that_a_launcher_or_a_case_cannot_use_are_refused_with_a_sentence():
    with pytest.raises(PlanError, match=r"ranks 9 x threads 1, but launch.hosts has a:4, b:2, c:2; leave"):
        line(case(9), HYDRA, LAB)
    with pytest.raises(LaunchError, match="srun starts ranks only on nodes of Slurm; name the mpiexec"):
        line(case(2), Launcher(path="/bin/srun", flavour="srun", version="24"), LAB)
    with pytest.raises(LaunchError, match="not 2 on a, 1 on b, 1 on c; say `ranks_per_node`"):
        line(case(4, 2), INTEL, LAB)
    with pytest.raises(LaunchError, match="from a path with a space, as '/my env/bin/mpiexec'; install"):
        line(case(2), replace(OPENMPI, path="/my env/bin/mpiexec"), LAB)


@pytest.mark.parametrize(
    ("launcher", "asked", "golden"),
    [
        (HYDRA, case(2), "-bind-to core:1 -n 2 JOB"),
        (HYDRA, case(4, 2), "-bind-to core:2 -n 4 JOB"),
        (HYDRA, case(2, bind="numa"), "-bind-to numa -n 2 JOB"),
        (HYDRA, case(2, bind="none"), "-bind-to none -n 2 JOB"),
        (HYDRA, case(9, oversubscribe=True), "-bind-to none -n 9 JOB"),
        (HYDRA, case(2, extra=("-bind-to", "rr")), "-bind-to rr -n 2 JOB"),
        (OPENMPI, case(2), "--map-by slot:PE=1 --bind-to core -n 2 JOB"),
        (OPENMPI, case(2, 4), "--map-by slot:PE=4 --bind-to core -n 2 JOB"),
        (OPENMPI, case(2, bind="socket"), "--map-by package --bind-to package -n 2 JOB"),
        (OPENMPI_4, case(2, bind="socket"), "--map-by socket --bind-to socket -n 2 JOB"),
        (OPENMPI, case(9, oversubscribe=True), "--bind-to none --oversubscribe -n 9 JOB"),
        (OPENMPI, case(8, oversubscribe=True, bind="none"), "--bind-to none -n 8 JOB"),
        (INTEL, case(2, 2), "-n 2 JOB"),
        (INTEL, case(2, extra=("-genv", "A", "$(b c)")), "-genv A '$(b c)' -n 2 JOB"),
    ],
)
def test_each_mpi_gets_its_own_options_for_cores_threads_and_sharing(launcher, asked, golden):
    assert line(asked, launcher) == golden


FIVE_NODES = {"nodes": 5, "hostfile": ""}
SRUN = Launcher(path="/usr/bin/srun", flavour="srun", version="22.05.8", arguments=("--mpi=pmi2",))
FLUX = Launcher(path="/usr/bin/flux", flavour="flux", version="0.60", arguments=("run",))
SRUN_TAIL = "--threads-per-core=1 --distribution=block:block"
SRUN_END = "--kill-on-bad-exit=1 --export=ALL JOB"


@pytest.mark.parametrize(
    ("launcher", "asked", "golden"),
    [
        (
            SRUN,
            case(8, 2),
            "--nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=2 "
            f"--cpu-bind=cores {SRUN_TAIL} {SRUN_END}",
        ),
        (
            SRUN,
            case(3, ranks_per_node=1, bind="numa", extra=("--exclusive",)),
            "--nodes=3 --ntasks=3 --ntasks-per-node=1 --cpus-per-task=1 "
            f"--cpu-bind=ldoms {SRUN_TAIL} --kill-on-bad-exit=1 --export=ALL --exclusive JOB",
        ),
        (
            SRUN,
            case(80, oversubscribe=True),
            "--nodes=5 --ntasks=80 --ntasks-per-node=16 --cpus-per-task=1 "
            f"--cpu-bind=none {SRUN_TAIL} --overcommit {SRUN_END}",
        ),
        (FLUX, case(8, 2), "--nodes=2 --ntasks=8 --cores-per-task=2 --setopt=cpu-affinity=per-task JOB"),
        (HYDRA, case(9), "-ppn 5 -bind-to core:1 -n 9 JOB"),
        (HYDRA, case(9, bind="none"), "-ppn 5 -bind-to none -n 9 JOB"),
        (OPENMPI, case(9, 2), "--map-by ppr:3:node:PE=2 --bind-to core -n 9 JOB"),
        (OPENMPI, case(9, bind="none"), "--map-by ppr:5:node --bind-to none -n 9 JOB"),
        (INTEL, case(9), "-ppn 5 -n 9 JOB"),
    ],
)
def test_each_launcher_spreads_ranks_over_nodes_as_the_case_asks(launcher, asked, golden):
    assert line(asked, launcher, machine(**FIVE_NODES)) == golden


def test_a_list_of_hosts_is_handed_to_launchers_that_cannot_ask_the_scheduler():
    here = machine(nodes=2, hostfile="/var/nodes 5")
    assert "-f '/var/nodes 5' -ppn 5 " in line(case(9), HYDRA, here)
    assert "--hostfile '/var/nodes 5' --map-by ppr:5:node:PE=1 " in line(case(9), OPENMPI, here)
    assert "/var/nodes" not in line(case(9), SRUN, here)


def test_more_nodes_than_there_are_is_reported_with_both_numbers():
    with pytest.raises(PlanError, match=r"6 nodes with 8 ranks x threads 1 on each, but host has 5 with 8"):
        line(case(48, ranks_per_node=8), SRUN, machine(**FIVE_NODES))
    with pytest.raises(PlanError, match=r"2 nodes with 1 ranks x threads 1 on each, but host has 1"):
        line(case(2, ranks_per_node=1), HYDRA)
    with pytest.raises(PlanError, match=r"1 nodes with 9 ranks"):
        line(case(9, ranks_per_node=9), SRUN, machine(**FIVE_NODES))


def test_what_a_job_leaves_to_srun_as_defaults_is_not_passed_on():
    inherited = {
        **dict.fromkeys(("SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_HINT", "SBATCH_QOS"), "1"),
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_CONF"), "1"),
    }
    env = command(case(1), SRUN, ["JOB"], machine(), environ=inherited, root=False).env
    kept = {name for name in env if name.startswith(("SLURM", "SBATCH"))}
    assert kept == {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_CONF"}


@pytest.mark.parametrize(
    ("asked", "variables"),
    [
        (case(2, 2), {"I_MPI_PIN": "1", "I_MPI_PIN_DOMAIN": "4:compact"}),  # two hardware threads a core
        (case(2, bind="socket"), {"I_MPI_PIN": "1", "I_MPI_PIN_DOMAIN": "socket"}),
        (case(9, oversubscribe=True), {"I_MPI_PIN": "0"}),
    ],
)
def test_intel_mpi_is_bound_by_variables_that_replace_inherited_ones(asked, variables):
    inherited = {"I_MPI_PIN_DOMAIN": "omp", "I_MPI_PIN_ORDER": "scatter", "I_MPI_FABRICS": "shm"}
    env = command(asked, INTEL, ["JOB"], machine(siblings=2), environ=inherited, root=False).env
    assert {name: value for name, value in env.items() if name.startswith("I_MPI")} == {
        **variables,
        "I_MPI_FABRICS": "shm",
    }


def test_ranks_stay_inside_an_affinity_that_the_launcher_would_look_past():
    cpus = ((2, 10), (3, 11), (6, 14), (7, 15))
    here = machine(core_cpus=cpus, restricted=True)
    assert line(case(2, 2), HYDRA, here) == "-bind-to user:2+10+3+11,6+14+7+15 -n 2 JOB"
    assert line(case(2, bind="numa"), HYDRA, here) == "-bind-to none -n 2 JOB"
    assert line(case(2), OPENMPI, here) == "--bind-to none -n 2 JOB"


def test_threads_come_from_the_case_and_nothing_of_the_login_shell_gets_in_their_way():
    inherited = {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "64",
        "RAYON_NUM_THREADS": "64",
        "GOMAXPROCS": "64",
        "KOKKOS_NUM_THREADS": "64",
        "OMP_PROC_BIND": "true",
        "OMP_PLACES": "cores",
        "KMP_AFFINITY": "compact",
        "MKL_DYNAMIC": "true",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OPENBLAS_CORETYPE": "Haswell",
        "UCX_TLS": "sm",
    }
    env = command(case(2, 3), HYDRA, ["JOB"], machine(), environ=inherited, root=False).env
    kept = {"PATH": "/bin", "OPENBLAS_CORETYPE": "Haswell", "UCX_TLS": "sm"}
    assert env == {**kept, **dict.fromkeys((*THREADS.split(), "KOKKOS_NUM_THREADS"), "3")}


def test_a_user_may_let_srun_share_the_cores_of_the_step_around_it():
    inherited = {"SLURM_OVERLAP": "1", "SLURM_EXACT": "1", "SLURM_NTASKS": "7"}
    env = command(case(1), HYDRA, ["JOB"], machine(), environ=inherited, root=False).env
    assert [name for name in env if name.startswith("SLURM")] == ["SLURM_OVERLAP"]


@pytest.mark.parametrize(
    ("omp", "variables"),
    [
        (Omp(), {}),
        (Omp(proc_bind="spread"), {"OMP_PROC_BIND": "spread"}),
        (
            Omp(proc_bind="close", places="cores", wait_policy="passive"),
            {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores", "OMP_WAIT_POLICY": "passive"},
        ),
        (Omp(places="cores"), {"OMP_PROC_BIND": "false", "OMP_PLACES": "cores"}),  # places alone would bind
    ],
)
def test_openmp_is_told_what_the_case_says_and_nothing_that_was_inherited(omp, variables):
    inherited = {
        "OMP_WAIT_POLICY": "active",
        "GOMP_SPINCOUNT": "infinite",
        "KMP_BLOCKTIME": "infinite",
        "OMP_DYNAMIC": "true",
    }
    env = command(case(1, 2, omp=omp), HYDRA, ["JOB"], machine(), environ=inherited, root=False).env
    assert env == {**dict.fromkeys(THREADS.split(), "2"), **variables}
    last = command(case(1, omp=omp, env={"OMP_PLACES": "{0}"}), HYDRA, [], machine(), environ={}, root=False)
    assert last.env["OMP_PLACES"] == "{0}"


def test_variables_of_the_case_have_the_last_word():
    asked = case(1, env={"OMP_NUM_THREADS": "2", "I_MPI_PIN": "off"})
    env = command(asked, INTEL, ["JOB"], machine(), environ={}, root=False).env
    assert (env["OMP_NUM_THREADS"], env["OPENBLAS_NUM_THREADS"], env["I_MPI_PIN"]) == ("2", "1", "off")


def test_more_ranks_and_threads_than_cores_are_refused_with_both_numbers_and_the_ways_out():
    with pytest.raises(PlanError) as refused:
        line(case(3, 3), HYDRA)
    for part in ("the case: ranks 3 x threads 3 = 9 cores", "host has 8", "exclude:", "oversubscribe: true"):
        assert part in str(refused.value)


def test_a_limit_on_cpu_time_counts_as_fewer_cores():
    here = machine(cpu_limit=2.5)
    assert here.names()["cores"] == 2
    with pytest.raises(PlanError, match=r"2.*allows 2\.5 CPUs"):
        line(case(3), HYDRA, here)


def test_open_mpi_may_run_as_root_in_a_container_or_where_the_user_says_so_and_nowhere_else():
    contained, bare = machine(container=True), machine()
    permit = "--allow-run-as-root"
    assert permit in line(case(1), OPENMPI, contained, root=True)
    assert permit not in line(case(1), OPENMPI, contained, root=False)
    assert permit not in line(case(1), HYDRA, contained, root=True)
    assert line(case(1, extra=(permit,)), OPENMPI, bare, root=True).count(permit) == 1
    said = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert permit not in line(case(1), OPENMPI, bare, root=True, **said)
    with pytest.raises(LaunchError, match=r"extra: \[--allow-run-as-root\]"):
        line(case(1), OPENMPI, bare, root=True, OMPI_ALLOW_RUN_AS_ROOT="1")
