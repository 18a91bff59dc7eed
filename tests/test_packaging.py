"""The recipes of package managers say what pyproject.toml says: version, dependencies, descriptions."""

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pscale

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "packaging"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FLOORS = {
    canonicalize_name(each.name): each.specifier for each in map(Requirement, PROJECT["dependencies"])
} | {"python": Requirement(f"python{PROJECT['requires-python']}").specifier}
HATCHLING = Requirement(tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"][0])


def conda():
    recipe = yaml.safe_load((RECIPES / "conda" / "recipe.yaml").read_text())
    run, host = (map(Requirement, recipe["requirements"][kind]) for kind in ("run", "host"))
    names = {"seaborn-base": "seaborn"}
    needs = {canonicalize_name(names.get(each.name, each.name)): each.specifier for each in run}
    build = next(each for each in host if each.name == "hatchling")
    return recipe["context"]["version"], recipe["about"]["summary"], needs, build


def spack():
    source = (RECIPES / "spack/spack_repo/pscale/packages/py_pscale/package.py").read_text()
    needs = dict(re.findall(r'depends_on\("(?:py-)?([\w-]+)@([\d.]+):"', source))
    build = needs.pop("hatchling")
    (package,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    specifiers = {name: Requirement(f"{name}>={floor}").specifier for name, floor in needs.items()}
    version = re.search(r'version\("([^"]+)"', source)[1]
    described = ast.get_docstring(package).removesuffix(".")
    return version, described, specifiers, Requirement(f"hatchling>={build}")


@pytest.mark.parametrize("recipe", [conda, spack])
def test_a_recipe_has_the_version_the_description_and_the_dependencies_of_the_project(recipe):
    version, described, needs, build = recipe()
    assert version == pscale.__version__
    assert described == PROJECT["description"]
    assert needs == FLOORS
    assert build == HATCHLING


def test_the_modules_of_easybuild_provide_every_dependency_in_a_version_that_will_do():
    (path,) = (RECIPES / "easybuild").iterdir()
    text = path.read_text()
    assert path.name.startswith(f"pscale-{pscale.__version__}-")
    assert f"\nversion = '{pscale.__version__}'\n" in text
    assert f'description = """{PROJECT["description"]}"""' in text
    stated = re.findall(r"\('\S+', '(\S+)',?(?: \{|\),)  # (.+)", text)
    provided = dict(each.split() for _, group in stated for each in group.split(", "))
    assert provided.keys() == FLOORS.keys()
    assert {name for name, version in provided.items() if version not in FLOORS[name]} == set()
    alone = [(version, group.split()[1]) for version, group in stated if "," not in group]
    assert [module for module, package in alone if module != package] == []


@pytest.mark.parametrize("name", ["Dockerfile", "pscale.def"])
def test_images_install_the_wheel_with_what_pip_knows_for_a_python_that_will_do(name):
    text = (RECIPES / name).read_text()
    (extra,) = re.findall(r"pscale-\*\.whl\)\[(\w+)\]", text)
    (python,) = re.findall(r"python:(\d+\.\d+)-slim", text, re.IGNORECASE)
    assert extra in PROJECT["optional-dependencies"]
    assert python in FLOORS["python"]


def test_the_metadata_for_indexes_of_software_is_that_of_the_project():
    meta = json.loads((RECIPES / "codemeta.json").read_text())
    assert (meta["name"], meta["version"]) == (PROJECT["name"], pscale.__version__)
    assert (meta["description"], meta["keywords"]) == (PROJECT["description"], PROJECT["keywords"])
    assert meta["license"].endswith(f"/{PROJECT['license']}")
    assert meta["runtimePlatform"] == f"Python {PROJECT['requires-python']}"


def test_the_changelog_and_the_file_to_cite_have_the_version_and_what_their_formats_require():
    text = (ROOT / "docs" / "changelog.md").read_text()
    assert re.findall(r"^## (\S+)", text, re.MULTILINE)[0] == pscale.__version__
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (cited["cff-version"], cited["version"]) == ("1.2.0", pscale.__version__)
    assert cited["message"]
    assert cited["title"]
    assert all(author["name"] for author in cited["authors"])


def test_workflows_are_read_as_yaml_and_try_the_oldest_python():
    for path in (ROOT / ".github" / "workflows").iterdir():
        workflow = yaml.safe_load(path.read_text())
        assert {"name", "jobs"} <= workflow.keys()
        pythons = {
            version
            for job in workflow["jobs"].values()
            for version in job.get("strategy", {}).get("matrix", {}).get("python", ())
        }
        oldest = min(pythons, key=lambda version: tuple(map(int, version.split("."))))
        assert f">={oldest}" in str(FLOORS["python"])
