"""The Store over SQL: SQLite on a laptop, PostgreSQL in a cluster, the same code."""
