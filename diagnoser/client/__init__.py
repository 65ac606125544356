"""Runs beside a training: passes output through and ships it, follows log files, prints the diagnosis. Imports the
standard library of Python 3.8 or later and nothing else, so that the service can hand it out as one file."""
