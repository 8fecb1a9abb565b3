"""`python -m fedgram` is the command line."""

from fedgram.cli.main import main

if __name__ == "__main__":
    main()
