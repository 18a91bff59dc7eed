import subprocess
import sys


def test_a_job_writes_its_tables_without_importing_pandas(tmp_path):
    program = (
        "import sys, pathlib, numpy\n"
        "import pscale.worker.__main__\n"
        "from pscale.results.store import write_columns\n"
        "columns = {'rank': numpy.zeros(3, int), 'phase': ['data'] * 3, 'wall_s': numpy.ones(3)}\n"
        "write_columns(pathlib.Path(sys.argv[1]), 'steps', 'a', 0, columns)\n"
        "assert not [name for name in sys.modules if name.startswith('pandas.')]\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
