"""An index of an attempt's kept lines, by which people read, filter and search them. Pure."""
