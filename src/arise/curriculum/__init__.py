"""Which tasks to train on: evidence, coverage and samplers."""
