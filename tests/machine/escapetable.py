"""What each mode of the local engine holds against an environment that tries to break out, and how that is judged.

A test runs in each mode that it is written for: where the table says "holds" nothing may get through, where it says
"does not hold" something must. docs/explanation/isolation.md shows the same table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from escapeworld import SECRET, VARIABLE, World

H, P, X = "holds", "partly", "does not hold"
COLUMNS = ("root", "user", "process")
TABLE: dict[str, tuple[str, str, str]] = {
    "the_owners_files_and_the_repository_are_out_of_sight": (H, H, X),
    "settings_and_passwords_of_the_host_are_out_of_sight": (H, H, X),
    "the_engines_own_folders_are_out_of_sight": (H, H, X),
    "files_of_another_instance_are_out_of_sight": (H, H, X),
    "links_lead_to_nothing_outside": (H, H, X),
    "a_link_in_the_project_brings_no_file_of_the_host_along": (H, H, X),
    "what_one_instance_spoils_the_next_one_finds_whole": (H, H, H),
    "nothing_that_is_shared_can_be_written": (H, H, X),
    "there_are_no_devices_and_none_can_be_made": (H, H, X),
    "setuid_programs_give_no_rights": (H, H, X),
    "processes_of_the_host_are_invisible": (H, H, X),
    "signals_reach_nobody_outside": (H, H, X),
    "killing_everybody_ends_nobody_outside": (H, H, X),
    "a_command_cannot_look_into_the_server": (H, H, X),
    "variables_of_the_owner_are_out_of_sight": (H, H, X),
    "only_meant_descriptors_are_inherited": (H, H, H),
    "sockets_of_the_engine_and_of_others_are_out_of_reach": (H, H, X),
    "abstract_sockets_of_the_host_are_out_of_reach": (H, H, X),
    "without_a_network_nothing_is_reached": (H, H, X),
    "a_public_environment_does_not_reach_the_hosts_loopback": (P, P, X),
    "shared_memory_of_the_host_is_out_of_sight": (H, H, X),
    "mounts_and_roots_cannot_be_changed": (H, H, X),
    "no_namespace_can_be_made_or_entered": (H, H, X),
    "there_is_no_capability_and_the_filter_is_on": (H, H, X),
    "nobody_can_become_another_user": (H, H, X),
    "settings_of_the_kernel_cannot_be_written": (H, H, X),
    "the_clock_and_the_hosts_names_cannot_be_changed": (H, H, X),
    "raw_and_foreign_sockets_are_refused": (H, H, X),
    "keyrings_are_out_of_reach": (H, H, X),
    "risky_parts_of_the_kernel_are_out_of_reach": (H, H, X),
    "nobody_types_into_a_terminal": (H, H, X),
    "a_crash_leaves_no_core_dump": (H, H, X),
    "control_groups_are_out_of_reach": (H, H, X),
    "a_fork_bomb_stops_at_the_limit": (H, H, X),
    "a_memory_bomb_stops_at_the_limit": (H, P, X),
    "memory_without_an_owner_counts_as_well": (H, X, X),
    "a_disk_bomb_stops_at_the_limit_and_is_told": (H, H, X),
    "an_inode_bomb_stops_at_a_limit": (H, H, X),
    "a_descriptor_bomb_stops_at_the_limit": (H, H, X),
    "endless_output_harms_nobody": (H, H, H),
    "too_many_processes_or_too_much_memory_are_told": (H, X, X),
    "nonsense_for_the_supervisor_harms_nobody": (H, H, H),
    "a_sandbox_that_lies_at_its_start_is_a_typed_error": (H, H, H),
    "a_hostile_preload_harms_no_other_environment": (H, H, X),
    "a_sandbox_ends_whatever_became_of_its_commands": (H, H, H),
    "two_instances_draw_different_numbers": (H, H, H),
}
UNTRIED = {
    *("killing_everybody_ends_nobody_outside", "mounts_and_roots_cannot_be_changed"),
    *("settings_of_the_kernel_cannot_be_written", "the_clock_and_the_hosts_names_cannot_be_changed"),
    *("nobody_types_into_a_terminal", "a_crash_leaves_no_core_dump", "nothing_that_is_shared_can_be_written"),
    *("a_fork_bomb_stops_at_the_limit", "a_memory_bomb_stops_at_the_limit", "memory_without_an_owner_counts_as_well"),
    *("a_disk_bomb_stops_at_the_limit_and_is_told", "an_inode_bomb_stops_at_a_limit"),
    *("a_descriptor_bomb_stops_at_the_limit", "too_many_processes_or_too_much_memory_are_told"),
    *(
        "nobody_can_become_another_user",
        "a_hostile_preload_harms_no_other_environment",
        "setuid_programs_give_no_rights",
    ),
}
"""Never tried with plain processes: it would harm the machine, or hangs on who runs the tests."""
MODES = (os.environ.get("AENV_ESCAPE_MODES") or ("root process" if os.geteuid() == 0 else "user process")).split()


class Trial:
    """A world, and what the table says of the test that uses it."""

    def __init__(self, world: World, verdict: str) -> None:
        self.world = world
        self._verdict = verdict

    def judge(self, escapes: list[str]) -> None:
        """Nothing got through where the table promises that, something where it says so."""
        if self._verdict == X:
            assert escapes, "the table says that this does not hold, and it does"
        else:
            assert escapes == []

    def attempt(self, name: str, **arguments: object) -> None:
        """Have the server and a command try it, and judge what they could do."""
        self.judge(self.world.by_both(name, None, **arguments))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test in every mode that it may be tried in."""
    if "trial" in metafunc.fixturenames:
        name = metafunc.function.__name__.removeprefix("test_")
        tried = [mode for mode in MODES if mode != "process" or name not in UNTRIED]
        metafunc.parametrize("trial", tried, indirect=True)


def open_worlds() -> Iterator[dict[str, World]]:
    """One world for each mode, made when first asked for."""
    made: dict[str, World] = {}
    os.environ[VARIABLE] = SECRET
    yield made
    del os.environ[VARIABLE]
    for world in made.values():
        world.close()


def open_trial(request: pytest.FixtureRequest, worlds: dict[str, World]) -> Trial:
    """The world of the mode that the test runs in."""
    mode: str = request.param
    if mode not in worlds:
        worlds[mode] = World(mode)
    name = request.function.__name__.removeprefix("test_")
    return Trial(worlds[mode], TABLE[name][COLUMNS.index(mode)])
