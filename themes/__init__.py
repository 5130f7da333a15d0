"""Colour themes as TOML data; this folder holds no code."""
