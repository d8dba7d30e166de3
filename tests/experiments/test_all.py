"""All experiments are found, run and reported on; one that fails is named, and the others run."""

from pathlib import Path

import pytest

from experiments.all import (
    BEGIN,
    END,
    NEEDS,
    TAKES,
    arguments,
    between_marks,
    claims,
    discover,
    main,
    with_table,
)
from experiments.shared.common import HOLDS, claim, claims_table, written

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
ROWS = [claim("water is wet", "0.9 ± 0.1", HOLDS)]


@pytest.fixture
def root(tmp_path):
    """A folder of experiments that write down what they were called with; `bad` fails, and `notes` is none."""
    made = tmp_path / "fakes"
    for name, code in (("bad", 3), ("good", 0), ("speedrun", 0), ("speed", 0)):
        (made / name).mkdir(parents=True)
        program = f"import sys; open('{name}.txt', 'w').write(' '.join(sys.argv[1:])); sys.exit({code})\n"
        (made / name / "run.py").write_text(program)
    (made / "notes").mkdir()
    (made / "good" / "results.json").write_text(written({"claims": ROWS}))
    (made / "speed" / "results.json").write_text(written({"claims": {"yes or no": True}}))
    return made


def test_every_experiment_is_found():
    found = discover(EXPERIMENTS)
    assert {"recipes", "speed", "speedrun", "induction", "heads", "shape", "optimizers", "halfhour"} <= set(found)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("option", TAKES)
def test_options_are_those_of_the_experiments(option):
    takers = {name for name in discover(EXPERIMENTS) if f'{option}"' in (EXPERIMENTS / name / "run.py").read_text()}
    assert takers == set(TAKES[option])
    assert all(name in TAKES[needed] for name, needed in NEEDS.items())


def test_one_that_fails_is_named_and_the_others_run(root, capfd):
    assert main(["--quick", "--peer", "peer"], root) == 1
    printed = capfd.readouterr().out
    assert printed.splitlines()[-1] == "failed: bad"
    assert "[1/4] bad: failed with exit code 3 after" in printed
    assert "[2/4] good: done after" in printed
    assert "[3/4] speed: started, without --peer-python" in printed
    assert "[4/4] speedrun: left out, it needs --shakespeare" in printed
    called = {file.stem: file.read_text() for file in root.parent.glob("*.txt")}
    assert called == {"bad": "--quick", "good": "--quick", "speed": "--quick --peer peer"}


def test_only_some_and_their_own_folder(root, capfd, tmp_path):
    text = tmp_path / "text"
    text.touch()
    assert main(["--only", "speedrun", "--out", str(tmp_path / "out"), "--shakespeare", str(text)], root) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "none failed"
    assert (tmp_path / "speedrun.txt").read_text() == f"--out {tmp_path}/out/speedrun --shakespeare {text}"
    assert arguments("good", {"shakespeare": "text"}, False, None) == []
    with pytest.raises(SystemExit):
        main(["--only", "speedrum"], root)
    assert "there is no experiment 'speedrum'" in capfd.readouterr().err


def test_claims_of_all_results_are_one_table(root):
    assert claims(root) == [{**ROWS[0], "experiment": "good"}]
    readme = root / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert main(["--claims"], root) == 0
    text = readme.read_text()
    assert "| water is wet | 0.9 ± 0.1 | holds | [good](good/README.md) |" in text
    assert text.startswith(f"before\n{BEGIN}\n|")
    assert text.endswith(f"{END}\nafter\n")
    assert between_marks(text) == f"\n{claims_table(claims(root))}"


def test_a_readme_without_marks_stays_as_it_is():
    for text in ("no marks", f"{BEGIN} begun only", f"{END} wrong way round {BEGIN}"):
        assert between_marks(text) is None
        assert with_table(text, "table") == text


def test_the_table_at_hand_is_that_of_the_results():
    inside = between_marks((EXPERIMENTS / "README.md").read_text(encoding="utf-8"))
    assert inside is not None
    assert inside.strip() == claims_table(claims(EXPERIMENTS)).strip()


def test_every_experiment_is_in_the_index():
    index = (EXPERIMENTS / "README.md").read_text(encoding="utf-8").partition(BEGIN)[0]
    assert [name for name in discover(EXPERIMENTS) if f"]({name}/README.md)" not in index] == []
