"""Real shippers send the files of a run that fails, with the configurations of deploy/shippers."""
