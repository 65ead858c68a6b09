"""The parts of `./dev bench guard`: networks and what is planted, training runs, the band of dense ones, and the tables."""
