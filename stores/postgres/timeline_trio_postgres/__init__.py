"""
The PostgreSQL store for timeline_trio.
"""
