"""Wheels: packing, checking, and their bills of materials."""
