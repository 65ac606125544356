"""`python -m diagnoser`."""

from diagnoser.cli import main

main()
