"""Sandboxes in which episodes run, and the verifier that grades them."""
