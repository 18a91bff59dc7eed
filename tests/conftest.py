import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread():
    """Ranks that are threads have small matrices and each other to share the cores with."""
    with threadpool_limits(1):
        yield
