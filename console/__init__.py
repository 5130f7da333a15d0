"""What a person sees and does: commands, screens, history. The only package that knows both remote and checks."""

__version__ = "0.1.0"
