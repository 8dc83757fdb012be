"""
A rolling deployment over four hosts, played by real processes on one store: `python -m timeline_trio.demo`.
"""
