"""Trains the tiny target and its drafter; nothing at run time imports this package."""
