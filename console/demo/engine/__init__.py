"""The embedded engine: a small SGLang-compatible server in numpy, so that the whole story runs without a GPU.

It really loads a Llama target and an EAGLE-3 draft, really captures target states, drafts, verifies and serves them.
"""
