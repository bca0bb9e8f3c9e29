"""``python -m rung`` is the command ``rung``."""

from rung.cli.app import main

main()
