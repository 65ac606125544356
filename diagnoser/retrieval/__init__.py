"""Similar confirmed failures, and search in the log of one attempt. Both by hashed words and letter groups."""
