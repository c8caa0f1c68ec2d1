"""Chat models that judge and reflect."""
