"""`python -m outdo` is the command `outdo`."""

from outdo.cli.main import main

main()
