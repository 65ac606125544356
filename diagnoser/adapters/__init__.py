"""The edges: each adapter turns one port of ``diagnoser.ports`` into calls to the world, and foreign
errors into ours.
"""
