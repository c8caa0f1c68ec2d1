"""The Terminus-2 harness of Terminal-Bench: keystrokes for a terminal, in JSON or XML."""

from arise.agents.terminus2.agent import Terminus2Agent

__all__ = ["Terminus2Agent"]
