"""`python -m sparrow_lab.cli` is `sparrow-lab`."""

from sparrow_lab.cli import main

main()
