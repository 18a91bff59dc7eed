"""For Spack 1.0 and newer: spack repo add packaging/spack/spack_repo/pscale && spack install py-pscale."""

from pathlib import Path

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyPscale(PythonPackage):
    """Strong and weak scaling of parallel training, measured: how well it scales, what limits it, what would fix it."""

    git = Path(__file__).parents[6].as_uri()  # the clone that this file is in

    license("MIT")

    version("0.1.0", branch="main")

    depends_on("c", type="build")
    depends_on("py-hatchling@1.27:", type="build")

    with default_args(type=("build", "run")):
        depends_on("python@3.11:")
        depends_on("py-mpi4py@4.1:")
        depends_on("py-numpy@2.0:")
        depends_on("py-ml-dtypes@0.5:")
        depends_on("py-threadpoolctl@3.5:")
        depends_on("py-pyarrow@16:")
        depends_on("py-pandas@2.2:")
        depends_on("py-scipy@1.13:")
        depends_on("py-seaborn@0.13:")
        depends_on("py-jinja2@3.1:")
        depends_on("py-typer@0.19:")
        depends_on("py-rich@13.7:")
        depends_on("py-pydantic@2.7:")
        depends_on("py-pyyaml@6.0:")
        depends_on("py-psutil@5.9:")
