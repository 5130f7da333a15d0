"""Engine facts, evidence and verdicts: knows no terminal and no SSH, and runs unchanged on the GPU host."""
