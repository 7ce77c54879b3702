"""Scenarios of the public MCP suite that our core does not pass, each with the reason. One that passes must go."""

from __future__ import annotations

PROMPTS = "an environment offers tools; prompts are left to the official runtime"
RESOURCES = "an environment offers tools; resources are left to the official runtime"
ASKING = "a tool that asks its client back (sampling, elicitation, roots) is left to the official runtime"
TASKS = "the tasks extension is not scored, and left to the official runtime"
COMPLETION = "completes the arguments of prompts and resources, of which there are none"

SESSIONS = {
    "completion-complete": COMPLETION,
    "tools-call-sampling": ASKING,
    "tools-call-elicitation": ASKING,
    "elicitation-sep1034-defaults": ASKING,
    "elicitation-sep1330-enums": ASKING,
    "resources-list": RESOURCES,
    "resources-read-text": RESOURCES,
    "resources-read-binary": RESOURCES,
    "resources-templates-read": RESOURCES,
    "resources-subscribe": RESOURCES,
    "resources-unsubscribe": RESOURCES,
    "prompts-list": PROMPTS,
    "prompts-get-simple": PROMPTS,
    "prompts-get-with-args": PROMPTS,
    "prompts-get-embedded-resource": PROMPTS,
    "prompts-get-with-image": PROMPTS,
}

STATELESS = {
    "completion-complete": COMPLETION,
    "resources-list": RESOURCES,
    "resources-read-text": RESOURCES,
    "resources-read-binary": RESOURCES,
    "resources-templates-read": RESOURCES,
    "sep-2164-resource-not-found": RESOURCES,
    "prompts-list": PROMPTS,
    "prompts-get-simple": PROMPTS,
    "prompts-get-with-args": PROMPTS,
    "prompts-get-embedded-resource": PROMPTS,
    "prompts-get-with-image": PROMPTS,
    "caching:sep-2549-prompts-list-caching-hints": PROMPTS,
    "caching:sep-2549-resources-list-caching-hints": RESOURCES,
    "caching:sep-2549-resources-templates-list-caching-hints": RESOURCES,
    "input-required-result-basic-elicitation": ASKING,
    "input-required-result-basic-sampling": ASKING,
    "input-required-result-basic-list-roots": ASKING,
    "input-required-result-request-state": ASKING,
    "input-required-result-multiple-input-requests": ASKING,
    "input-required-result-multi-round": ASKING,
    "input-required-result-missing-input-response": ASKING,
    "input-required-result-ignore-extra-params": ASKING,
    "input-required-result-non-tool-request": ASKING,
    "input-required-result-result-type": ASKING,
    "input-required-result-tampered-state": ASKING,
    "input-required-result-capability-check": ASKING,
    "tasks-lifecycle": TASKS,
    "tasks-capability-negotiation": TASKS,
    "tasks-wire-fields": TASKS,
    "tasks-request-state-removal": TASKS,
    "tasks-mrtr-input": TASKS,
    "tasks-request-headers": TASKS,
    "tasks-dispatch-and-envelope": TASKS,
    "tasks-required-task-error": TASKS,
    "tasks-mrtr-composition": TASKS,
}

REASONS = {"2025-11-25": SESSIONS, "2026-07-28": STATELESS}

# What concerns tools, progress, logging, cancellation and transport: these must pass, whatever else does not apply.
REQUIRED = {
    "2025-11-25": {
        "server-initialize", "logging-set-level", "ping", "tools-list", "tools-call-simple-text", "tools-call-image",
        "tools-call-audio", "tools-call-embedded-resource", "tools-call-mixed-content", "tools-call-with-logging",
        "tools-call-error", "tools-call-with-progress", "server-sse-multiple-streams", "dns-rebinding-protection",
        "server-session-lifecycle", "json-schema-2020-12",
    },
    "2026-07-28": {
        "server-stateless", "tools-list", "tools-call-simple-text", "tools-call-image", "tools-call-audio",
        "tools-call-embedded-resource", "tools-call-mixed-content", "tools-call-error", "tools-call-with-progress",
        "server-sse-multiple-streams", "dns-rebinding-protection", "http-header-validation",
        "http-custom-header-server-validation", "json-schema-2020-12",
    },
}  # fmt: skip
