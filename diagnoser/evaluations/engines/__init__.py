"""Programs that stand between a suite and its engine. They run as scripts with the engine's own Python, which looks for
modules beside a script first: nothing else may lie here."""
