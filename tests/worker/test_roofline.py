import pytest

from pscale.nn import kernels
from pscale.worker import roofline
from pscale.worker.environment import use_kernels


def test_cores_are_cpu_time_over_wall_time_and_gflops_those_of_the_fastest_product(monkeypatch):
    # begin; start and end of three products, which are enough once the time is up; end
    wall = iter([0.0, 0.0, 1.0, 1.0, 1.25, 1.25, 2.0, 2.0, 4.0])
    cpu = iter([10.0, 16.0])
    monkeypatch.setattr(roofline, "perf_counter", lambda: next(wall))
    monkeypatch.setattr(roofline, "process_time", lambda: next(cpu))
    found = roofline.measure_gemm(100, "float32", 0.0)
    assert found.cores == pytest.approx(6.0 / 4.0)
    assert found.gflops == pytest.approx(2 * 100**3 / 0.25 * 1e-9)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("choice", ["numpy", "auto"])
def test_memory_has_a_bandwidth_whatever_kernels_compute(choice, narrow):
    before = kernels.current()
    try:
        use_kernels(choice, 1, narrow=narrow)
        assert roofline.stream_gb_s(1 << 20) > 0
    finally:
        kernels.use(before)
