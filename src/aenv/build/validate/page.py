"""docs/reference/findings.md, made from the catalog."""

from __future__ import annotations

from collections.abc import Iterable

from aenv.build.validate.catalog import RUN, SERVED, STATIC
from aenv.build.validate.findings import Check
from aenv.build.validate.subject import Subject
from aenv.build.validate.trial import Trial
from aenv.build.validate.visit import Visit

_PAGE = """\
# Findings of `aenv validate`

<!-- Made by aenv.build.validate.page.render(); a test keeps it current. -->

`aenv validate` checks a project at one of two levels. `--level static` reads its files and runs nothing. The default,
`--level runtime`, adds a run: the project is served in a child process, visited and stopped, and what it left behind is
looked for. A finding has a `code`, a `severity`, `where` and `message`, which make a sentence, and a `remedy`.

| exit code | meaning |
|---|---|
| 0 | no errors; with `--strict`, no warnings either |
| 1 | errors, or with `--strict` warnings |
| 2 | a wrong command line |
| 3 | the checks could not be made |

While a finding marked * stands, the project cannot be served, so it is not run.

## Static

{static}

## Runtime

{runtime}

## Examples and promises

The block `validation` of config.json is for these checks alone. Every part of it may be left out.

```json
{{
  "validation": {{
    "reward": {{ "range": [0, 1] }},
    "examples": [{{ "tool": "add", "arguments": {{ "a": 1, "b": 2 }}, "expect": 3 }}],
    "rewardExamples": [{{ "reward": "score", "arguments": {{ "answer": "3" }}, "expect": [0.5, 1] }}]
  }}
}}
```

- `reward.range`: every reward that is called lies between the two numbers.
- `examples`: each call succeeds, in this order, and gives `expect` if there is one. It is made twice, and must give the
  same, where the tool has `readOnlyHint` or `idempotentHint`.
- `rewardExamples`: each call succeeds, after the examples. Where no reward is named the default one is called. `expect`
  is a number or a range.

Without examples, what needs no arguments is called: each reward once, before anything else, and each tool with
`readOnlyHint` or `idempotentHint` twice. A tool with `openWorldHint` asks the outside world, so it may differ.

## What is not seen

- Tools and rewards with required arguments are called from examples only.
- Memory is that of the server, without the processes it starts.
- A process is missed if it left its session, its parent and its environment all behind.
- Files are looked for in the project and in the folder for temporary files, and nowhere else.
- The static level sees imports and decorators as they are written, not what code computes.
- Without Linux's /proc, `leak.process` and `envelope.memory` are not checked; `checks` in the JSON output tells.
"""


def render() -> str:
    """The text of the page."""
    return _PAGE.format(static=_table(STATIC), runtime=_table([*RUN, *SERVED]))


def _table(checks: Iterable[Check[Subject] | Check[Trial] | Check[Visit]]) -> str:
    rows = ["| code | severity | what was found | what to do |", "|---|---|---|---|"]
    for check in checks:
        code = f"`{check.code}`{'*' if check.is_fatal else ''}"
        rows.append(f"| {code} | {check.severity} | {check.about} | {check.remedy or 'nothing'} |")
    return "\n".join(rows)
