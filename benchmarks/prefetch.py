"""Measure what reading samples ahead gains: with files as they are, and where every read takes long.

    python benchmarks/prefetch.py [--delays 0 2000] [--repeat 5] [--ranks 2]

A library that is loaded before others lets every read of a sample sleep for some microseconds. Launches
with and without `data.prefetch` alternate at random; pscale's own report compares them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SLOW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void rest(int descriptor) {
  char link[64], name[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, name, sizeof name - 1);
  if (length <= 0) return;
  name[length] = 0;
  if (strstr(name, "/corpus") && strstr(name, ".bin")) usleep(DELAY_US);
}
ssize_t read(int descriptor, void *to, size_t size) {
  static ssize_t (*real)(int, void *, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "read");
  rest(descriptor);
  return real(descriptor, to, size);
}
ssize_t pread(int descriptor, void *to, size_t size, off_t at) {
  static ssize_t (*real)(int, void *, size_t, off_t);
  if (!real) real = dlsym(RTLD_NEXT, "pread");
  rest(descriptor);
  return real(descriptor, to, size, at);
}
ssize_t pread64(int, void *, size_t, off_t) __attribute__((alias("pread")));
"""
SUITE = """
name: prefetch-{delay}
scaling: strong
model: {{kind: gpt, layers: 2, width: 128, heads: 4, sequence: 128, vocabulary: 256}}
data: {{kind: text, source: python-stdlib}}
train: {{batch: 16, micro_batches: 2, steps: 20, warmup: 3}}
plan: {{dp: ranks}}
ranks: {ranks}
repeat: {repeat}
timing: {{gemm_peak: false, overhead_steps: 0}}
launch: {{time_limit: 5m{env}}}
sweep: {{data.loading: [mpi-io, files], data.prefetch: [false, true]}}
"""
COLUMNS = ("io_s", "hidden_s", "stall_s", "data_s", "step_s")


def measure(folder: Path, delay: int, ranks: int, repeat: int) -> None:
    """Print what the report of a run says, whose reads sleep for so many microseconds each."""
    library, env = folder / f"slow-{delay}.so", ""
    if delay:
        source = folder / "slow.c"
        source.write_text(SLOW)
        flags = ["-O2", "-shared", "-fPIC", f"-DDELAY_US={delay}"]
        subprocess.run(["cc", *flags, "-o", library, source, "-ldl"], check=True)
        env = f', env: {{LD_PRELOAD: "{library}"}}'
    suite = folder / f"{delay}.yaml"
    suite.write_text(SUITE.format(delay=delay, ranks=ranks, repeat=repeat, env=env))
    pscale, reports = [sys.executable, "-m", "pscale"], folder / "reports"
    subprocess.run(
        [*pscale, "run", suite, "--reports", reports, "--no-report"], check=True, capture_output=True
    )
    (run,) = (reports / f"prefetch-{delay}").glob("*/run.json")
    said = subprocess.run(
        [*pscale, "report", run.parent, "--format", "json"], check=True, capture_output=True
    )
    for row in json.loads(said.stdout)["choices"]:
        times = "  ".join(f"{name[:-2]} {1e3 * (row[name] or 0):7.3f} ms" for name in COLUMNS)
        ratio, *bounds = (row[f"step_ratio{end}"] or 0 for end in ("", "_low", "_high"))
        answer = f"x {ratio:.3f} ({bounds[0]:.3f} to {bounds[1]:.3f}) {row['answer']}"
        print(f"{delay:6} us a read  {row['label']:24} {times}  {answer}", flush=True)


def main() -> None:
    """Measure every delay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--delays", type=int, nargs="+", default=[0, 2000], help="microseconds")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pscale-"))
    for delay in options.delays:
        measure(folder, delay, options.ranks, options.repeat)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
