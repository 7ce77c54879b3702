"""What the author of an environment imports: decorators, registry, schemas, loading."""
