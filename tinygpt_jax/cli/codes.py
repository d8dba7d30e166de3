"""Exit codes of the command."""

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
SIGNALLED = 128
"""To which the number of a signal is added: 130 is that of SIGINT."""
