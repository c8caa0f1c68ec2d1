"""ARISE: reinforcement learning of language-model agents with co-evolving rubrics and skills."""

__version__ = "0.1.0"
