"""`python -m lograd` is the command `lograd`, so that `torchrun -m lograd train ...` starts it on each rank."""

from .cli import main

if __name__ == "__main__":
    main()
