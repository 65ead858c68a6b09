"""The products of a training step: what each operand becomes before it enters one, and which backend computes it."""
