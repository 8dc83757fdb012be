"""
Private: how calls become facts.
"""
