"""`python -m pscale` is `pscale`."""

from pscale.cli import main

main()
