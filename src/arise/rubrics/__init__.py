"""The rubric-skill pool and its life cycle."""
