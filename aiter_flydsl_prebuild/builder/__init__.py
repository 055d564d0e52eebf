"""The build half: from a plan to a proven wheel. A server that only loads kernels imports none of it."""
