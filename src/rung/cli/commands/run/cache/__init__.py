"""List and clear the folders in which keys and values of earlier prompts are kept."""

#: Command ``rung cache x`` is the function ``x`` of the module ``rung.cli.commands.run.cache.x``.
COMMANDS = ("list", "clear")
