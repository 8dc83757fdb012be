"""
The Redis store for timeline_trio.
"""
