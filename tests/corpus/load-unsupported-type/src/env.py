import socket

from aenv import register_tool


@register_tool
def send(connection: socket.socket, text: str) -> None:
    """Send a text over a connection.

    Args:
        connection: The way to go.
        text: What to send.
    """
    connection.sendall(text.encode())
