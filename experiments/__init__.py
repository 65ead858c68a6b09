"""The laboratory, outside the wheel: tables and figures of the papers, a small training loop, models, data, the demo.

Run from a clone: `./dev demo`, `./dev reproduce NAME`.
"""
