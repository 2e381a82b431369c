"""`python -m photofinish` is the command `photofinish`."""

from photofinish.commands.cli import main

if __name__ == "__main__":
    main()
