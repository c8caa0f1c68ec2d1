"""Held-out evaluation."""
