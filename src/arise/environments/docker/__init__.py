"""Sandboxes by Docker: one container per episode, on one Docker host or several."""

from arise.environments.docker.environment import DockerEnvironment
from arise.environments.docker.factory import DockerFactory

__all__ = ["DockerEnvironment", "DockerFactory"]
