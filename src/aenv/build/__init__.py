"""A project folder: reading, scaffolding, checking, serving it for its author."""
