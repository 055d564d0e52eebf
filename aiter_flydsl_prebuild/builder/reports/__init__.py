"""What is said of packs: the report, listings and comparisons."""
