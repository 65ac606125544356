"""The commands of the command line, a file for each noun. `diagnoser/cli.py` puts them together."""
