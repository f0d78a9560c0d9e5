"""The operations in C++ for processors: one shared library behind a C interface, loaded with ctypes.

`native/` holds its sources (setup.py compiles them), `library` finds and loads it.
"""
