"""Blocks of a recipe that Megatron-Core has none of, for Megatron's own trainer. `spec.py` puts them in place."""
