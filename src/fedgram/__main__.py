"""`python -m fedgram` is the command line."""

from fedgram.cli.main import main

main()
