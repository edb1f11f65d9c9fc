"""The one exception that reaches the user as a sentence instead of a traceback."""


class InputError(Exception):
    """Something the user gave is wrong: the message names it and says what to do, in one sentence."""
