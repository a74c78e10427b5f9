"""Options from tessera.toml and the environment: who wins, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from tessera.cli.main import app, main
from tessera.cli.settings import settings_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in an empty folder; its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for name in ("TESSERA_GALLERY", "TESSERA_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["tessera", *words])
        with pytest.raises(SystemExit) as leaving:
            main()
        printed = capsys.readouterr()
        return int(leaving.value.code or 0), printed.out, printed.err

    return call


def test_the_command_line_wins_then_the_environment_then_the_file(run, monkeypatch, tmp_path):
    looked_for = lambda *words: run("stats", *words)[2]  # noqa: E731
    assert "gallery.tessera" in looked_for()
    (tmp_path / "tessera.toml").write_text('gallery = "from-above"\n')
    assert "from-above" in looked_for()
    (tmp_path / "tessera.toml").write_text('gallery = "from-above"\n[stats]\ngallery = "from-table"\n')
    assert "from-table" in looked_for()
    monkeypatch.setenv("TESSERA_GALLERY", "from-environment")
    assert "from-environment" in looked_for()
    assert "from-line" in looked_for("-g", "from-line")


def test_every_option_has_a_variable(run, monkeypatch):
    monkeypatch.setenv("TESSERA_SEARCH_K", "many")
    code, _, error = run("search", "x.jpg")
    assert code == 2
    assert "-k" in error
    assert "integer" in error


def test_a_variable_that_looks_like_a_version_does_not_print_one(run, monkeypatch):
    monkeypatch.setenv("TESSERA_VERSION", "1")
    assert run("models", "--json")[0] == 0


def test_the_file_of_the_user_and_a_named_one_are_read(run, tmp_path):
    home = tmp_path / "home" / "tessera"
    home.mkdir(parents=True)
    (home / "tessera.toml").write_text("[models]\njson = true\n")
    assert json.loads(run("models")[1])
    other = tmp_path / "other.toml"
    other.write_text("[models]\njson = false\n")
    with pytest.raises(json.JSONDecodeError):
        json.loads(run("--config", str(other), "models")[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "port"),
        ("[serve]\nprot = 1", "port"),
        ("[sevre]\nport = 1", "serve"),
        ("[bench.serach]\njson = true", "search"),
        ("port = = 1", "line 1"),
    ],
)
def test_a_wrong_file_is_refused_with_what_was_meant(run, tmp_path, text, said):
    (tmp_path / "tessera.toml").write_text(text)
    code, out, error = run("models")
    assert (code, out) == (1, "")
    assert "tessera.toml" in error
    assert said in error


def test_a_value_of_the_wrong_kind_is_refused(run, tmp_path):
    (tmp_path / "tessera.toml").write_text('[serve]\nport = "eight"\n')
    code, _, error = run("serve")
    assert code == 2
    assert "--port" in error
    assert "integer" in error


def test_a_named_file_that_is_not_there_is_an_error(run):
    code, _, error = run("--config", "nowhere.toml", "models")
    assert code == 1
    assert "nowhere.toml" in error


def test_verbose_says_what_is_read_and_errors_only_says_nothing(run, tmp_path):
    (tmp_path / "tessera.toml").write_text("[models]\njson = true\n")
    assert "tessera.toml" in run("--verbose", "models")[2]
    assert run("--log-level", "error", "models")[2] == ""


def test_the_page_of_settings_is_complete():
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    variables = {setting.variable for setting in settings_of(typer.main.get_command(app))}
    assert all(f"`{variable}`" in page for variable in variables)
    assert {"TESSERA_KEY", "TESSERA_SERVE_ROOT_PATH", "TESSERA_EVALUATE_RANKS_RANKS"} <= variables
