"""Walls tried from the side: every way into the service times everything that a job controls, on the real service.

``lies`` holds what a job can say, ``ways`` how it comes in, ``records`` how a node's log looks on the way, ``site`` the
service with its cluster, and ``judge`` what must not have happened. ``python -m tests.attacks`` runs any part of it.
"""
