"""What a user can put right."""


class FaustnetError(Exception):
    """A mistake in what was asked for, told in one sentence that says what to do. Never a bug."""
