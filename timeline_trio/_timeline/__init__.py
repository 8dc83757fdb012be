"""
Private: the public face, on top of everything.
"""
