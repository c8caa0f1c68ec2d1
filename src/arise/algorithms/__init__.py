"""Pure functions of the method: rewards, advantages, loss, log-probabilities, packing."""
