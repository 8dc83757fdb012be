"""
Private: import from the public modules.
"""
