"""What runs inside the box: the server that speaks MCP and HTTP for one environment."""
