"""The pack: its bytes, what its manifest says, and the code objects in it."""
