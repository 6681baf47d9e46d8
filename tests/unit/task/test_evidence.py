"""Data of a query that an agent can read without sending a probe."""

import pytest

from netarena.task.evidence import Candidate, Evidence, Kind, relative


def test_evidence_survives_a_json_round_trip():
    evidence = Evidence(
        id="toy-1-0",
        label="close-1",
        wrong=True,
        candidates=(Candidate(name="v1", target=True, trace={"mtime": float("inf")}),),
        form={"count": 2.0},
    )
    assert Evidence.model_validate_json(evidence.model_dump_json()) == evidence


def test_features_are_listed_for_the_requested_kind_only():
    candidate = Candidate(name="v1", target=False, trace={"mtime": 1.0}, form={"size": 2.0})
    assert candidate.features(Kind.TRACE) == {"mtime": 1.0}
    assert candidate.features(Kind.FORM) == {"size": 2.0}
    evidence = Evidence(id="q", label="", candidates=(candidate,), trace={"prompt_s": 1.5})
    assert evidence.features(Kind.TRACE) == {"prompt_s": 1.5}
    assert evidence.features(Kind.FORM) == {}


def test_relative_features_contain_ranks_of_candidates_but_no_constants():
    found = relative(
        {
            "a": {"age": 1.0, "mtu": 1500.0},
            "b": {"age": 3.0, "mtu": 1500.0},
            "c": {"age": 3.0, "mtu": 1500.0},
            "d": {"age": 9.0, "mtu": 1500.0, "only_here": 1.0},
        }
    )
    assert [found[name]["age~rank"] for name in "abcd"] == pytest.approx([0, 0.5, 0.5, 1])
    assert found["a"]["age~off"] < 0 == found["b"]["age~off"] < found["d"]["age~off"]
    assert "mtu~rank" not in found["a"]
    assert found["d"]["only_here"] == 1.0
    assert "only_here~rank" not in found["d"]
