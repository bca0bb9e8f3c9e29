"""Train Gaussian splats from photographs, view, edit and export them."""

#: Command ``rung splat x`` is the function ``x`` of the module ``rung.cli.commands.run.splat.x``.
COMMANDS = ("train", "eval", "render", "export", "view", "sfm", "info")
