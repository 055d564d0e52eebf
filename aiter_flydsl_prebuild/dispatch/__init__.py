"""Dispatch: from tuned tables to the kernel that serves a token count."""
