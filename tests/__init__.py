"""A package, so that tests can share `tests.drawing`."""
