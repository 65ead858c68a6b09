"""README and docs keep their word: examples run, commands work, tables are the generator's, links lead somewhere."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest
from everyday import daily

from lograd.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
SHELL = re.compile(r"```\n((?:lograd .*\n)+)```")
WITH_EXAMPLES = [page for page in PAGES if PYTHON.search(page.read_text())]


def text_of(name):
    return (ROOT / name).read_text()


def blocks_of(page):
    """The Python blocks of a page; one that begins with `# NAME.py` is saved under that name, as the page says."""
    for block in PYTHON.findall(page.read_text()):
        if named := re.match(r"# (\w+\.py)\n", block):
            Path(named[1]).write_text(block)
        yield block


@pytest.mark.filterwarnings("ignore:noise of this plan is predicted")  # of a network before its first step
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile uses what torch deprecates
@pytest.mark.parametrize(
    "page",
    daily(WITH_EXAMPLES, lambda page: page.name not in ("variance.md", "accelerate.md")),
    ids=lambda page: page.name,
)
def test_the_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {}
    for block in blocks_of(page):
        exec(block, scope)
    CHECKS.get(page.name, lambda scope, folder: None)(scope, tmp_path)


def check_readme(scope, folder):
    handle = scope["handle"]
    assert handle.plan == scope["plan"]
    assert handle.counters().total.treated == 5 * len(scope["plan"].layers)  # six batches; the first is not treated


def check_guide(scope, folder):
    assert {path.name for path in folder.iterdir()} == {"profile.html", "profile.npz", "plan.json", "run.pt"}
    plan, handle = scope["mine"], scope["handle"]
    assert (handle.plan, list(plan.kept)) == (plan, ["11", "0"])
    assert handle.counters().total.treated == 5 * len(plan.layers)
    assert abs(scope["theory"].sparsity(scope["law"], scope["a"]) - 0.85) < 1e-9
    assert abs((scope["pruned"] == 0).float().mean() - 0.85) < 0.01
    assert scope["format"].bits == 6
    assert abs(scope["measured"] / scope["predicted"] - 1) < 0.02  # the same rounding and scale rule on both sides
    (chosen,) = scope["profile"].plan(bits=6).layers["0"].site("weight_gradient", "gradient")
    assert (chosen.scale, chosen.rounding) == ("max", "stochastic")  # those that the page gives to theory


def check_recipes(scope, folder):
    # Two layers, three batches, two copies of the gradient; the first layer needs no input gradient.
    assert scope["handle"].counters().total.treated == 3 * (2 * 2 - 1)
    rows = scope["total"]  # of 32 tokens in each of 16 samples and two layers, those behind the first are zero
    assert rows.rows == 2 * 16 * 32
    assert 2 * 16 * 31 <= rows.rows_zero <= rows.rows - rows.rows_kept  # a row that one layer drops is zero in the next


CHECKS = {"README.md": check_readme, "guide.md": check_guide, "recipes.md": check_recipes}


def run(line, monkeypatch):
    """A command line of the page, in this process."""
    monkeypatch.setattr(sys, "argv", shlex.split(line, comments=True))
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, line


@pytest.mark.slow
def test_the_command_lines_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "command-line.md"
    assert len(list(blocks_of(page))) == 1
    for line in SHELL.search(page.read_text())[1].splitlines():
        run(line, monkeypatch)
    names = {"profile.npz", "profile.html", "plan.json", "variance.json", "variance.html"}
    assert names <= {path.name for path in (tmp_path / "run").iterdir()}
    sys.modules.pop("digits")


def test_the_command_lines_of_the_readme_run_with_a_package_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make = PYTHON.search(text_of("docs/command-line.md"))[1]
    (tmp_path / "mypkg").mkdir()
    (tmp_path / "mypkg" / "train.py").write_text(make)
    for line in SHELL.search(text_of("README.md"))[1].splitlines():
        run(line, monkeypatch)
    assert (tmp_path / "run" / "variance.html").exists()
    for name in ("mypkg.train", "mypkg"):
        sys.modules.pop(name)


def test_a_fresh_clone_needs_exactly_two_commands():
    readme = text_of("README.md")
    commands = re.search(r"```\n(\./dev.*?)```", readme, re.DOTALL)[1].strip().splitlines()
    assert [command.split("#")[0].strip() for command in commands] == ["./dev demo", "./dev test"]


# -- what the generator writes --


@pytest.fixture
def generate(monkeypatch, capsys):
    """`./dev docs` without its set-up, in this process; gives the exit code and the complaints."""
    monkeypatch.syspath_prepend(ROOT)
    generator = importlib.import_module("docs.generator.__main__")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["docs.generator", *map(str, arguments)])
        return generator.main(), capsys.readouterr().err

    return call


def test_the_tables_are_what_the_generator_writes(generate):
    code, complaints = generate("--check")
    assert code == 0, complaints


def test_a_stale_table_is_found_and_written(generate, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- made by ./dev docs: endings -->\nold\n<!-- end -->\nafter\n")
    code, complaints = generate("--check", page)
    assert (code, "page.md is out of date" in complaints) == (1, True)
    assert "old" in page.read_text()
    assert generate(page)[0] == 0
    assert "| `-nearest` | rounded to nearest |" in page.read_text()


# -- links --


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_are_there(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```|`[^`\n]+`", "", text, flags=re.DOTALL)):
        if not target.startswith("https://"):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), target
            assert file.is_relative_to(ROOT), target
            assert not anchor or anchor in anchors(file), target
    for path in re.findall(r"(?<![\w./-])((?:tests|benchmarks|experiments|src|docs)/[\w./-]+\.\w+)", text):
        assert (ROOT / path).exists(), path
    for command in re.findall(r"`\./dev test ([^`]+)`", text):
        assert all((ROOT / path).exists() for path in command.split()), command
