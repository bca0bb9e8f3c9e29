"""``python -m rung`` is the command ``rung``."""

from rung.cli.app import main

if __name__ == "__main__":
    main()
