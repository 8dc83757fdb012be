"""
The MySQL store for timeline_trio.
"""
