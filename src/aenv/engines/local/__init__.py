"""The local engine: sandboxes made of Linux namespaces, forked in milliseconds, with no daemon and no root needed."""
