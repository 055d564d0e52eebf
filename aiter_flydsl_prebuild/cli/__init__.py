"""The command line: :mod:`.main` parses, prints and sets the exit status; each command has a module of its own."""
