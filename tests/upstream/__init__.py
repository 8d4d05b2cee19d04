"""Faults of pypaimon 2.1.0 and Daft 0.7.26, shown without any code of lakehouse.

A test here passes while the fault is there. When one turns red, upstream has healed: take away the remedy that its docstring
names, and the test.
"""
