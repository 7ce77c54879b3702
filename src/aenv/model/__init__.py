"""Pure data and rules: no input, no output, no clock."""
