"""The parts of `./dev bench guard`: what is planted, training runs, the band of dense ones, and the tables."""
