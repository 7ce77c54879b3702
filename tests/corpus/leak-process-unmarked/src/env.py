import subprocess

from aenv import register_tool


@register_tool
def add(a: int, b: int) -> int:
    """Add two numbers and return their sum.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


# Neither in the server's session nor with its environment.
WATCHER = subprocess.Popen(["sleep", "300"], start_new_session=True, env={"PATH": "/usr/bin:/bin"})
