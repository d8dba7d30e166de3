"""The one kind of error that is the asker's to mend."""


class UserError(ValueError):
    """What was asked cannot be done: one line that names the thing, its value and the remedy.

    The command line prints the message alone and exits with 1; anything else that is raised is a fault of ours.
    """
