"""`python -m tessera`: the same as `tessera`."""

from tessera.cli.main import main

main()
