"""The configuration's reference page, from the YAML files and their schemas."""
