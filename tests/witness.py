"""A profiler of MPI that shares nothing with the recorder of `pscale watch`: C, made from a library's mpi.h.

It is preloaded before the recorder, hands every call on to it, and writes a line for each function: how often
this rank called it, and the bytes that the rank gave, unless the call failed. What functions call inside the
library does not count.
"""

import re
import subprocess
from collections.abc import Collection
from pathlib import Path

_PROTOTYPE = re.compile(r"\bint\s+MPI_(\w+)\s*\(([^;{]*)\)[^;{]*;")
_HEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local int depth;
static long long count[1000], bytes[1000];
static const char *names[1000];

static void *library(const char *name) {
  static void *handle;
  if (!handle) handle = dlopen(LIBRARY, RTLD_LAZY | RTLD_NOLOAD);
  if (!handle) { fprintf(stderr, "the witness does not find %s\\n", LIBRARY); abort(); }
  return dlsym(handle, name);
}

static int size_of(MPI_Comm comm) {
  int among, size;
  ((int (*)(MPI_Comm, int *))library("PMPI_Comm_test_inter"))(comm, &among);
  ((int (*)(MPI_Comm, int *))library(among ? "PMPI_Comm_remote_size" : "PMPI_Comm_size"))(comm, &size);
  return size;
}

static int is_root(int root, MPI_Comm comm) {
  int among, rank;
  ((int (*)(MPI_Comm, int *))library("PMPI_Comm_test_inter"))(comm, &among);
  ((int (*)(MPI_Comm, int *))library("PMPI_Comm_rank"))(comm, &rank);
  return among ? root == MPI_ROOT : root == rank;
}

static long long size_of_type(MPI_Datatype type) {
  int size = 0;
  if (type != MPI_DATATYPE_NULL) ((int (*)(MPI_Datatype, int *))library("PMPI_Type_size"))(type, &size);
  return size;
}

static void write_counts(void) {
  int rank;
  char path[4096];
  ((int (*)(MPI_Comm, int *))library("PMPI_Comm_rank"))(MPI_COMM_WORLD, &rank);
  snprintf(path, sizeof path, "%s/%d", getenv("WITNESS"), rank);
  FILE *file = fopen(path, "w");
  for (int i = 0; i < 1000; i++)
    if (count[i]) fprintf(file, "%s %lld %lld\\n", names[i], count[i], bytes[i]);
  fclose(file);
}
"""
_IN_PLACE = "sendbuf == MPI_IN_PLACE ? (long long)recvcount * size_of_type(recvtype) : "
_SENT = "(long long)sendcount * size_of_type(sendtype)"
_EACH = "for (int i = 0; i < size_of(comm); i++) of += sendcounts[i];"
_SUM = f"({{long long of = 0; {_EACH} of;}}) * size_of_type(sendtype)"
_BYTES = (  # that a rank gives, by what the standard says that it sends; other functions are only counted
    (r"I?bcast", "is_root(root, comm) ? (long long)count_ * size_of_type(datatype) : 0"),
    (r"I?reduce", "root < 0 ? 0 : (long long)count_ * size_of_type(datatype)"),
    (r"I?(allreduce|scan|exscan)", "(long long)count_ * size_of_type(datatype)"),
    (r"I?[bsr]?send|I?sendrecv_replace", "dest < 0 ? 0 : (long long)count_ * size_of_type(datatype)"),
    (r"I?sendrecv", f"dest < 0 ? 0 : {_SENT}"),
    (r"I?scatter", f"is_root(root, comm) ? {_SENT} * size_of(comm) : 0"),
    (r"I?scatterv", f"is_root(root, comm) ? {_SUM} : 0"),
    (r"I?allgather", f"{_IN_PLACE}{_SENT}"),
    (r"I?gather", f"root < 0 ? 0 : {_IN_PLACE}{_SENT}"),
    (r"I?alltoall", f"({_IN_PLACE}{_SENT}) * size_of(comm)"),
)


def bytes_of(name: str) -> str | None:
    """Return the C expression of the bytes that a call of a function gives, if there is one."""
    return next((rule for pattern, rule in _BYTES if re.fullmatch(pattern, name, re.IGNORECASE)), None)


def prototypes(compiler: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the types and names of the parameters of every function in mpi.h."""
    command = [str(compiler), "-E", "-P", "-include", "mpi.h", "-x", "c", "/dev/null"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {
        name: [_parameter(each) for each in parameters.split(",") if each.strip() not in {"", "void"}]
        for name, parameters in _PROTOTYPE.findall(text)
        if "..." not in parameters and "(" not in parameters
    }


def _parameter(text: str) -> tuple[str, str]:
    declaration = re.fullmatch(r"\s*(.*?)(\w+)\s*((?:\[\w*\])*)\s*", text, re.DOTALL)
    assert declaration, text
    kind, name, array = declaration.groups()
    return kind.strip() + re.sub(r"^\[\w*\]", "*", array), f"{name}_" if name == "count" else name


def source(compiler: Path, names: Collection[str]) -> str:
    """Return the profiler of the functions that are named, and of their twins with large counts."""
    text = [_HEAD]
    found = prototypes(compiler)
    numbers = {name: number for number, name in enumerate(sorted(names))}
    for name, number in numbers.items():
        for twin in (name, f"{name}_c"):
            if twin not in found:
                continue
            kinds = ", ".join(kind for kind, _ in found[twin])
            passed = ", ".join(own for _, own in found[twin])
            declared = ", ".join(f"{kind} {own}" for kind, own in found[twin]) or "void"
            text.append(
                f"int MPI_{twin}({declared}) {{\n"
                "  long long given = 0;\n"
                f"  static int (*next)({kinds or 'void'});\n"
                f'  if (!next) next = (int (*)({kinds or "void"}))dlsym(RTLD_NEXT, "MPI_{twin}");\n'
                f"  if (depth == 0) {{\n"
                f'    names[{number}] = "{name}";\n'
                f"    __atomic_add_fetch(&count[{number}], 1, __ATOMIC_RELAXED);\n"
                f"    given = {bytes_of(name) or 0};\n  }}\n"
                + ("  write_counts();\n" if name == "Finalize" else "")
                + f"  depth++;\n  int error = next({passed});\n  depth--;\n"
                f"  if (!error) __atomic_add_fetch(&bytes[{number}], given, __ATOMIC_RELAXED);\n"
                "  return error;\n}\n"
            )
    return "\n".join(text)


def build(compiler: Path, library: Path, names: Collection[str], folder: Path) -> Path:
    """Compile the profiler for programs of an MPI library; returns the shared object."""
    (folder / "witness.c").write_text(source(compiler, names), encoding="utf-8")
    shared = folder / "witness.so"
    flags = ("-shared", "-fPIC", "-O1", f'-DLIBRARY="{library}"', "-o", str(shared))
    subprocess.run([str(compiler), *flags, str(folder / "witness.c"), "-ldl"], check=True)
    return shared


def counts(folder: Path) -> list[dict[str, tuple[int, int]]]:
    """Return, for each rank, how often each function was called and the bytes that it gave."""
    ranks = sorted(folder.iterdir(), key=lambda path: int(path.name))
    rows = [[line.split() for line in path.read_text().splitlines()] for path in ranks]
    return [{name: (int(count), int(given)) for name, count, given in own} for own in rows]
