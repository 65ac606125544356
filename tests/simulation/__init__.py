"""The whole service on one seeded clock: replicas, agents and shippers crash, repeat themselves, differ in time."""
