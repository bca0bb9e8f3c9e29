"""Serve models on many unequal machines as one, over Ray."""

#: Command ``rung fleet x`` is the function ``x`` of the module ``rung.cli.commands.run.fleet.x``.
COMMANDS = ("up", "join", "token", "status", "leave", "down")
