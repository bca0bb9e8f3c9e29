"""Gaussian splats on the device that is there."""

#: Command ``rung splat x`` is the function ``x`` of the module ``rung.cli.commands.run.splat.x``.
COMMANDS = ("train", "eval", "render", "export", "view", "sfm", "info")
