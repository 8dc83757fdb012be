"""
Private: the facts of this process, between their recording and their saving.
"""
