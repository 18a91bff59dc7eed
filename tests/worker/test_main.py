import subprocess
import sys


def test_ranks_start_without_arrow_and_the_one_that_writes_loads_it_without_pandas(tmp_path):
    program = (
        "import sys, pathlib, numpy\n"
        "import pscale.worker.__main__\n"
        "planning = {'pscale.parallel.strategies', 'pscale.training.dry_run', 'pscale.training.grid_units'}\n"
        "assert not planning & sys.modules.keys()\n"
        "assert 'pyarrow' not in sys.modules\n"
        "from pscale.runs.store import write_columns\n"
        "columns = {'rank': numpy.zeros(3, int), 'phase': ['data'] * 3, 'wall_s': numpy.ones(3)}\n"
        "write_columns(pathlib.Path(sys.argv[1]), 'steps', 'a', 0, columns)\n"
        "assert not [name for name in sys.modules if name.startswith('pandas.')]\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


def test_a_rank_that_cannot_leave_behind_why_it_dies_ends_the_job_all_the_same(tmp_path):
    program = (
        "import sys, pathlib\n"
        "import pscale.worker.__main__ as worker\n"
        "worker.mpi.abort = lambda: print('aborts')\n"
        "worker.report_and_abort(pathlib.Path(sys.argv[1]))\n"
        "raise ValueError('lost')\n"
    )
    argv = [sys.executable, "-c", program, str(tmp_path / "gone")]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ended.stdout == "aborts\n"
    assert "ValueError: lost" in ended.stderr
