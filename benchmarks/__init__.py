"""Benchmarks, each a module that `./dev bench NAME` runs; results go to the folder results."""
