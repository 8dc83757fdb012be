"""
Private: the manager and its background tasks.
"""
