"""The parts of `./dev bench integer`: what is timed, the peers beside it, and the tables."""
