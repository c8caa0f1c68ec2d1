"""Agent programs of others, run in the sandbox against the recording proxy."""

from arise.agents.external.agent import ExternalAgent

__all__ = ["ExternalAgent"]
