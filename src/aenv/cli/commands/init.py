"""`aenv init`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from aenv.build.scaffold import TEMPLATES, find_template, scaffold
from aenv.cli.options import output_option, work_dir_option
from aenv.cli.output import Output, say, show, tree
from aenv.errors import ProjectError

EXAMPLES = """\b
Examples:
  aenv init my-env                   a project in ./my-env
  aenv init my-shell -t terminal     from another template
  aenv init my-env --config-only     only ./config.json, for code that is there already
  aenv init --list-templates         what there is to start from
"""


class TemplateType(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only, and 8.1 is our floor
    """The name of a template; a wrong one is answered with the nearest and with all there are."""

    name = "template"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name itself if there is such a template."""
        try:
            find_template(value)
        except ProjectError as error:
            self.fail(error.message, param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names with their descriptions."""
        return [CompletionItem(name, help=text) for name, text in TEMPLATES.items() if name.startswith(incomplete)]


@click.command(epilog=EXAMPLES)
@click.argument("name", required=False, metavar="NAME")
@click.option("-v", "--version", default="1.0.0", show_default=True, help="Version to begin with.")
@click.option("-t", "--template", type=TemplateType(), default="default", show_default=True, help="What to start from.")
@work_dir_option
@click.option("--force", is_flag=True, help="Replace files that are there already.")
@click.option("--config-only", is_flag=True, help="Write just a config.json here.")
@click.option("--list-templates", is_flag=True, help="Show the templates and write nothing.")
@output_option
@click.pass_context
def init(
    ctx: click.Context,
    name: str | None,
    version: str,
    template: str,
    work_dir: Path,
    force: bool,
    config_only: bool,
    list_templates: bool,
    output: Output,
) -> None:
    """Create a project from a template.

    NAME becomes the name of the environment and of its folder. Nothing is sent anywhere, and nothing is half done:
    either all files are written or none.
    """
    if list_templates:
        show([{"template": key, "description": text} for key, text in TEMPLATES.items()], output=output)
        return
    if name is None:
        raise click.UsageError("missing argument 'NAME'", ctx)
    target = work_dir if config_only else work_dir / name
    written = scaffold(target, name, version, template, force=force, config_only=config_only)
    if output == "table":
        _tell(f"{name} {version}", template, target, written, config_only=config_only)
    else:
        files = [str(file.relative_to(target)) for file in written]
        facts = {"name": name, "version": version, "template": template, "path": str(target), "files": files}
        show(facts, output=output)


def _tell(title: str, template: str, target: Path, written: list[Path], *, config_only: bool) -> None:
    place = _shortest(target)
    what = f"config.json for {title}" if config_only else f"{title} from the template {template}"
    say(f"created {what}\n", style="bold green")
    tree(f"{place}/", [file.relative_to(target) for file in written])
    steps = [
        (f"cd {shlex.quote(place)}", ""),
        ("aenv run", "serve it here and call its tools"),
        ("aenv test", "run test/ against it"),
    ]
    if config_only:
        steps = [("aenv validate", "check it together with the code")]
    width = max(len(command) for command, _ in steps)
    say("\nnext:")
    for command, purpose in steps:
        say(f"  {command:<{width}}   {purpose}".rstrip())


def _shortest(folder: Path) -> str:
    """The folder as a person in the current one would write it."""
    relative = os.path.relpath(folder)
    return str(folder) if relative.startswith("..") else relative
