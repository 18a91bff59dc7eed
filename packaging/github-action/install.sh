#!/bin/sh
# Install pscale into the Python of the job: this source tree with MPICH, or what PSCALE_INSTALL names for pip.
set -eu
source=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
if [ -z "${PSCALE_INSTALL:-}" ]; then
    python -m pip install --quiet "pscale[mpich] @ file://$source"
else
    # shellcheck disable=SC2086 - several words are several arguments
    python -m pip install --quiet $PSCALE_INSTALL
fi
pscale doctor || true
