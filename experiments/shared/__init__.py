"""What experiments share: one command, claims and verdicts, numbers over seeds, small models of text."""
