#!/bin/sh
# Install pscale into the Python of the job: this source tree with MPICH, or what PSCALE_INSTALL names for pip.
set -eu
if [ -z "${PSCALE_INSTALL:-}" ]; then
    python -m pip install --quiet "$(CDPATH='' cd -- "${0%/*}/../.." && pwd)[mpich]"
else
    # shellcheck disable=SC2086 - several words are several arguments
    python -m pip install --quiet $PSCALE_INSTALL
fi
pscale doctor || true
