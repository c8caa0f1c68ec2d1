"""Engines that play the policy."""
