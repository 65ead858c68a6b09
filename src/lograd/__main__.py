"""`python -m lograd` is the command `lograd`."""

from .cli import main

if __name__ == "__main__":
    main()
