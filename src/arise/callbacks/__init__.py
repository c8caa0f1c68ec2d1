"""Rollouts, co-evolution, recording and monitoring as Lightning callbacks."""
