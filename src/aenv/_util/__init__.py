"""Leaf functions that know nothing of aenv."""
