"""The tables of README.md and docs/*.md: made from the code and from committed measurements by `./dev docs`.

A page is written by hand around blocks; a block is what stands between two marks, and only that is replaced.
"""
