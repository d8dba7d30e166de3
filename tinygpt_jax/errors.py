"""The one kind of error that is the asker's to mend."""


class UserError(Exception):
    """What was asked cannot be done: one line that names the thing, its value and the remedy.

    The command line prints the message alone and exits with 1; anything else that is raised is a fault of ours. It
    is no ValueError, since libraries between the check and the command line take those for theirs.
    """
