"""Real hangs: small gloo jobs of torch on this machine, each with one rank that is made to hold up the others."""
