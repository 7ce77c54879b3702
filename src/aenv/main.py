"""`python -m aenv.main PATH`: the entry point that images built for earlier releases call."""

from __future__ import annotations

from aenv.sandbox.__main__ import arguments, leave, run


def run_cli(argv: list[str] | None = None) -> int:
    """Serve PATH on every address, as those images expect; `--log-dir` is accepted and not needed."""
    parser = arguments("python -m aenv.main", host="0.0.0.0")  # noqa: S104 - inside a container, whose ports are mapped
    parser.add_argument("--log-dir", help="ignored: the log goes to stderr")
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    leave(run_cli())
