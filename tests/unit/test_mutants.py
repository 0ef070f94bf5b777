"""Test that each mutant's text occurs in the code, so that moved code keeps its mutants."""

from mutants import MUTANTS, ROOT


def test_the_text_of_each_mutant_occurs_once_in_its_file() -> None:
    lost = []
    for mutant in MUTANTS:
        path = ROOT / mutant.file
        count = path.read_text().count(mutant.old) if path.exists() else 0
        if count != 1:
            lost.append(f"{mutant.name}: {mutant.file} has {mutant.old!r} {count} times")
    assert not lost, "\n".join(lost)


def test_a_mutant_changes_its_text() -> None:
    assert not [mutant.name for mutant in MUTANTS if mutant.old == mutant.new]
