"""Harnesses that turn a policy and a sandbox into a trajectory."""
