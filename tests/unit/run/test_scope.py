"""Strata of the installed applications."""

import pytest

from netarena.analysis.strata import Cell, Feature
from netarena.errors import ConfigError
from netarena.run.scope import Scope, derive_seed
from netarena.task.application import load


def scope_of(name, **values):
    app = load(name)
    return Scope.of(app, app.config_type.parse(values))


def cell_of(scope, label, **setting):
    """Return the cell with this label whose setting has these keys."""
    names = [one.name for one in scope.space.labels]
    places = [at for at, one in enumerate(scope.settings) if setting.items() <= one.items()]
    return Cell(places[0], names.index(label))


def test_reactive_labels_are_fault_kinds_and_their_combinations():
    scope = scope_of("route", emulator="netns")
    kinds = len(scope.application.catalogue.paper) + len(scope.application.catalogue.extended)
    sizes = [label.group for label in scope.space.labels]
    assert sizes.count("1") == kinds
    assert sizes.count("2") == kinds * (kinds - 1) // 2
    axes = {feature.axis for feature in scope.space.singles}
    assert axes == {
        *("briefing", "fault", "faults", "world"),
        *("num_switches", "num_hosts_per_subnet"),
    }


@pytest.mark.parametrize("name", ["route", "k8s", "backbone"])
def test_each_kind_of_fault_is_in_one_group_of_kinds_with_the_same_mask(name):
    app = load(name)
    grouped = [kind for group in app.catalogue.alike for kind in group]
    assert sorted(grouped) == sorted((*app.catalogue.paper, *app.catalogue.extended))


def test_kinds_with_the_same_mask_replace_each_other_in_a_search():
    scope = scope_of("route", emulator="netns", world="standard", num_switches=3)
    others = {one.value for one in scope.space.others(Feature("fault", "host_gateway"))}
    assert "host_address" in others
    assert "remove_ip" not in others


def test_settings_that_do_not_allow_every_label_are_omitted():
    scope = scope_of("route", emulator="netns")
    sizes = {one["num_switches"] for one in scope.settings if one["world"] == "varied"}
    assert sizes == {3, 4}


def test_keys_set_by_the_user_are_the_same_in_every_query():
    scope = scope_of("k8s", world="varied", error_types=["add_ingress", "remove_ingress"])
    assert {feature.axis for feature in scope.space.singles} == {"briefing", "fault", "num_apps"}
    config = scope.config(cell_of(scope, "add_ingress"), 5)
    assert (config.world, config.error_types) == ("varied", ("add_ingress",))


def test_backbone_uses_the_combinations_of_its_labels():
    scope = scope_of("backbone", emulator="netns", briefing="full", routers=4)
    app = scope.application
    assert [one.name for one in scope.space.labels] == [*app.labels(app.config_type.parse({}))]


def test_malt_labels_have_their_actions_as_features():
    scope = scope_of("malt")
    (label,) = (one for one in scope.space.labels if one.name.endswith("level-2, remove-rank"))
    assert {Feature("action", "remove"), Feature("action", "rank")} <= label.features
    assert set(scope.levels.values()) == {f"level{number}" for number in range(1, 6)}
    plan = next(one.name for one in scope.space.labels if scope.levels[one.name] == "level5")
    assert scope.query(cell_of(scope, plan, phrasing="varied"), 1).label == plan
    assert scope.query(cell_of(scope, plan, phrasing="held_out"), 1) is None


def test_all_planning_tasks_of_a_search_have_the_same_number_of_attempts():
    scope = scope_of("malt", complexity_level=["level5"])
    assert "attempts" not in {feature.axis for feature in scope.space.singles}
    assert {scope.config(Cell(at, 0), 1).attempts for at in range(len(scope.settings))} == {1}
    fixed = scope_of("malt", complexity_level=["level5"], attempts=3)
    assert {fixed.config(Cell(at, 0), 1).attempts for at in range(len(fixed.settings))} == {3}


@pytest.mark.parametrize(
    ("name", "label", "setting"),
    [
        ("malt", "capacity planning, level-4, if-rank", {"phrasing": "varied"}),
        ("route", "remove_ip+host_setting", {"world": "varied", "briefing": "full"}),
        ("k8s", "change_port", {"world": "standard", "briefing": "ticket"}),
    ],
)
def test_query_has_the_label_and_the_keys_of_its_cell(name, label, setting):
    scope = scope_of(name, **({"emulator": "netns"} if name == "route" else {}))
    cell = cell_of(scope, label, **setting)
    query = scope.query(cell, 11)
    assert query.label == label
    assert query == scope.query(cell, 11)
    assert query.content != scope.query(cell, 12).content
    config = scope.config(cell, 11)
    assert setting.items() <= config.model_dump(mode="json").items()


def test_cell_without_queries_returns_no_query():
    scope = scope_of("route", emulator="netns", error_types=["faults_5"], num_switches=2)
    assert (
        scope.query(cell_of(scope, "faults_5", num_hosts_per_subnet=1, world="standard"), 1) is None
    )


def test_labels_that_a_config_cannot_select_depend_on_the_seed():
    scope = scope_of("toy", quiet=True, complexity_level=["level1", "level2"])
    assert {scope.query(Cell(0, 0), seed).label for seed in range(3)} == {
        "close-0", "close-1", "close-2",
    }  # fmt: skip


@pytest.mark.parametrize("key", ["num_queries", "repeats", "start_index", "time_budget_s"])
def test_config_key_that_applies_only_to_runs_is_refused_in_a_search(key):
    value = 2.0 if key == "time_budget_s" else 2
    with pytest.raises(
        ConfigError, match=rf"config.{key}: has no effect in a search: omit the key"
    ):
        scope_of("toy", **{key: value})


def test_derived_seeds_of_different_parts_differ():
    assert derive_seed(7, "draws", 1) != derive_seed(7, "draws", 2) != derive_seed(8, "draws", 2)
    # the same on every machine
    assert derive_seed(7, "draws", 1) == 6257934904192650857
