"""What the public documentation of the product family teaches authors works here, with the results it names.

The code follows those pages example by example, in words of our own. What needs a caller's `Environment` or a hub is
not among it yet.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Environment, open_environment, wait_for, write_project

from aenv.model.spec import EnvSpec
from aenv.sandbox.server import open_listener

AENV = Path(sys.executable).with_name("aenv")

SOURCE = '''
from typing import Any, Dict, List, Optional

from pydantic import BaseModel

from aenv import register_function, register_health, register_reward, register_tool


@register_tool
def my_tool(param1: str, param2: int = 42) -> dict:
    """Take a word and a number.

    Args:
        param1: The word
        param2: The number

    Returns:
        What became of them
    """
    return {"result": f"Processed {param1}", "number": param2}


@register_tool
def my_custom_echo_env(content: str) -> Dict[str, Any]:
    """
    Give the content back.

    Args:
        content: Any content to echo

    Returns:
        A dictionary with the content
    """
    return {"result": f"{content}"}


@register_tool
def simple_types(name: str, count: int, price: float, enabled: bool, tags: list[str]) -> str:
    return "OK"


class UserQuery(BaseModel):
    query: str
    max_results: int = 10
    include_details: bool = False


@register_tool
def search_users(params: UserQuery) -> str:
    return f"Searching: {params.query}"


@register_tool
def search_code(query: str, max_results: int = 10, folder: Optional[str] = None) -> list:
    """Search code in the repository."""
    return [{"file": "main.py", "line": 42, "content": query}][:max_results]


@register_reward
def evaluate_code_quality(code: str, test_results: dict) -> dict:
    """
    Score a piece of code.

    Args:
        code: The code
        test_results: How many tests passed and failed

    Returns:
        Score, feedback and details
    """
    score = 0.0
    feedback: List[str] = []
    if test_results.get("passed", 0) > 0:
        score += 0.5
        feedback.append("Tests passed")
    if len(code) < 1000:
        score += 0.3
        feedback.append("Code concise")
    if "def " in code and "import " in code:
        score += 0.2
        feedback.append("Good structure")
    return {"score": score, "feedback": "; ".join(feedback), "details": test_results}


@register_reward
def code_quality_reward(code: str, test_results: dict) -> float:
    """Between -1 and 1."""
    if test_results["passed"]:
        return 1.0
    return -0.5


@register_function
def custom_endpoint(data: dict) -> dict:
    """An endpoint of our own."""
    return {"status": "success", "data": data}


@register_health
def system_health_check() -> dict:
    """Look at processor, memory and disk."""
    import os, shutil

    disk = shutil.disk_usage("/")
    return {
        "status": "healthy",
        "cpu_percent": 100.0 * os.getloadavg()[0] / (os.cpu_count() or 1),
        "disk_usage": 100.0 * disk.used / disk.total,
        "uptime": "Running normally",
    }
'''

SERVICE = {
    "replicas": 1,
    "port": 8081,
    "enableStorage": False,
    "storageName": "aenv",
    "storageSize": "10Gi",
    "mountPath": "/home/admin/data",
}
TEMPLATE = {
    "name": "aenv",
    "version": "1.0.0",
    "tags": ["linux"],
    "status": "Ready",
    "codeUrl": "",
    "artifacts": [],
    "buildConfig": {"dockerfile": "./Dockerfile", "context": "."},
    "testConfig": {"script": ""},
    "deployConfig": {
        "cpu": "1",
        "memory": "2Gi",
        "os": "linux",
        "ephemeralStorage": "5Gi",
        "environmentVariables": {},
        "service": SERVICE,
    },
}
CONFIGS: dict[str, dict[str, Any]] = {
    "the template": TEMPLATE,
    "with an artifact": {
        **TEMPLATE,
        "artifacts": [{"id": "", "type": "image", "content": "reg.example.com/faas-swe/image:search-1.0.0-v3"}],
    },
    "with build parameters": {
        **TEMPLATE,
        "buildConfig": {"dockerfile": "./Dockerfile", "context": ".", "image_name": "hello", "image_tag": "latest"},
    },
    "extended": {
        **TEMPLATE,
        "deployConfig": {
            "cpu": "2",
            "memory": "4Gi",
            "os": "linux",
            "ephemeralStorage": "5Gi",
            "imagePrefix": "registry.example.com/envs",
            "podTemplate": "Default",
            "environmentVariables": {"MODEL_PATH": "/models/llm"},
            "service": {**SERVICE, "storageName": "my-env"},
        },
    },
    "two containers": {
        **TEMPLATE,
        "deployConfig": {"podTemplate": "DualContainer", "imagePrefix": "registry.example.com/envs"},
    },
    "a time to live": {**TEMPLATE, "deployConfig": {"ttl": "2h"}},
    "older sizes": {
        **TEMPLATE,
        "deployConfig": {"cpuRequest": "1", "cpuLimit": "2", "memoryRequest": "1Gi", "memoryLimit": "4Gi"},
    },
}


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    project = write_project(tmp_path_factory.mktemp("public"), SOURCE, TEMPLATE)
    environment = open_environment(project)
    yield environment
    environment.stop()


def call(env: Environment, tool: str, arguments: dict[str, Any]) -> Any:
    """A tool's result over MCP."""
    (message,) = env.rpc("tools/call", {"name": tool, "arguments": arguments}).messages
    return message["result"]


def test_a_tool_is_described_by_its_docstring_and_called_over_mcp(env: Environment) -> None:
    (message,) = env.rpc("tools/list").messages
    tools = {tool["name"]: tool for tool in message["result"]["tools"]}
    assert tools["my_tool"]["description"].startswith("Take a word and a number.")
    properties = tools["my_tool"]["inputSchema"]["properties"]
    assert properties["param1"] == {"type": "string", "description": "The word"}
    assert properties["param2"] == {"type": "integer", "description": "The number", "default": 42}
    assert tools["my_tool"]["inputSchema"]["required"] == ["param1"]
    result = call(env, "my_tool", {"param1": "it"})
    assert result["structuredContent"] == {"result": "Processed it", "number": 42}
    assert result["isError"] is False


def test_an_echo_comes_back_as_text_and_as_data(env: Environment) -> None:
    result = call(env, "my_custom_echo_env", {"content": "hello"})
    assert result["content"] == [{"type": "text", "text": '{"result":"hello"}'}]
    assert env.tool("my_custom_echo_env", {"content": "hello"}).data == {"result": "hello"}


def test_the_recommended_types_are_taken(env: Environment) -> None:
    arguments = {"name": "a", "count": 1, "price": 1.5, "enabled": True, "tags": ["x", "y"]}
    assert call(env, "simple_types", arguments)["structuredContent"] == {"result": "OK"}
    assert call(env, "search_code", {"query": "bug", "folder": None})["structuredContent"] == {
        "result": [{"file": "main.py", "line": 42, "content": "bug"}]
    }


def test_a_pydantic_model_is_a_parameter_with_defaults(env: Environment) -> None:
    (message,) = env.rpc("tools/list").messages
    tools = {tool["name"]: tool for tool in message["result"]["tools"]}
    schema = tools["search_users"]["inputSchema"]["properties"]["params"]
    assert schema["required"] == ["query"]
    assert schema["properties"]["max_results"] == {"type": "integer", "default": 10}
    assert call(env, "search_users", {"params": {"query": "ada"}})["content"][0]["text"] == "Searching: ada"


def test_the_first_reward_answers_with_a_dictionary_and_the_other_with_a_number(env: Environment) -> None:
    arguments = {"code": "def hello(): return 'world'", "test_results": {"passed": 5, "failed": 0}}
    reward = env.post("/task/reward", arguments).data
    assert reward == {
        "score": 0.8,
        "feedback": "Tests passed; Code concise",
        "details": {"passed": 5, "failed": 0},
    }
    assert env.post("/task/reward/code_quality_reward", arguments).data == 1.0
    failed = {**arguments, "test_results": {"passed": 0}}
    assert env.post("/task/reward/code_quality_reward", failed).data == -0.5


def test_a_function_is_an_endpoint(env: Environment) -> None:
    assert env.post("/functions/custom_endpoint", {"data": {"a": 1}}).data == {"status": "success", "data": {"a": 1}}
    listed = env.get("/functions/list").data
    assert [function["name"] for function in listed["functions"]] == ["custom_endpoint"]


def test_the_authors_health_check_answers(env: Environment) -> None:
    answer = env.get("/health")
    assert answer.status == 200
    assert answer.data["status"] == "healthy"
    assert answer.data["uptime"] == "Running normally"
    assert 0 < answer.data["disk_usage"] < 100


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_documented_configuration_is_accepted_and_served(
    config: dict[str, Any], serve: Callable[..., Environment]
) -> None:
    assert EnvSpec.from_dict(config).to_dict() == config
    env = serve(
        "from aenv import register_tool\n@register_tool\ndef ping() -> str:\n    return 'pong'\n", config=config
    )
    assert env.tool("ping").data == "pong"
    assert env.get("/").data["name"] == "aenv"


def test_run_quiet_serves_the_folder_that_holds_config_json(tmp_path: Path) -> None:
    """`aenv run --quiet` in the project's folder, the host of DUMMY_INSTANCE_IP asked for health and tools."""
    project = write_project(tmp_path / "project", SOURCE, TEMPLATE)
    with open_listener("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    said: list[str] = []
    with subprocess.Popen(
        [AENV, "run", "--quiet", "--port", str(port)],
        cwd=project,
        env={**os.environ, "NO_COLOR": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        threading.Thread(target=said.extend, args=(process.stderr,), daemon=True).start()
        try:
            wait_for(lambda: said, 20)
            with urllib.request.urlopen(f"http://localhost:{port}/health", timeout=20) as answer:
                health = json.load(answer)
        finally:
            process.terminate()
    assert re.fullmatch(rf"aenv@1\.0\.0 is served at http://127\.0\.0\.1:{port}\n", said[0])
    assert health["data"]["status"] == "healthy"


def test_the_version_can_be_asked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import aenv; print(aenv.__version__)"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", done.stdout)
