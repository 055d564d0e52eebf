"""The proof that a server compiles nothing, in a process of its own."""
