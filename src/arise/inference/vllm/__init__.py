"""The engine that plays the policy on vLLM servers."""
