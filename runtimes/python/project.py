# Lists the dependencies of a project, in a sandbox of the base environment:
# python3 project.py OUT.json [EXTRA…], with pyproject.toml in the directory.
#
# Reads only the fields of PEP 621; never runs a build back end.
import json
import re
import sys
import tomllib


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def strings(value, where):
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ValueError("%s is not a list of strings" % where)
    return value


def dependencies(extras):
    with open("pyproject.toml", "rb") as f:
        project = tomllib.load(f).get("project")
    if not isinstance(project, dict):
        raise ValueError("no [project] table: list the dependencies in project.dependencies")
    dynamic = strings(project.get("dynamic", []), "project.dynamic")
    if "dependencies" in dynamic or extras and "optional-dependencies" in dynamic:
        raise ValueError("the dependencies are dynamic, known only to the project's build: list the dependencies in project.dependencies, or use a requirements.txt")
    out = list(strings(project.get("dependencies", []), "project.dependencies"))
    table = project.get("optional-dependencies", {})
    if not isinstance(table, dict):
        raise ValueError("project.optional-dependencies is not a table")
    optional = {normal(k): v for k, v in table.items()}
    own = re.compile(r"\s*%s\s*\[([^\]]*)\]\s*$" % re.escape(str(project.get("name", ""))), re.IGNORECASE)
    todo, done = list(extras), set()
    while todo:
        extra = normal(todo.pop(0))
        if extra in done:
            continue
        done.add(extra)
        if extra not in optional:
            raise ValueError("no optional dependencies %r: known are %s" % (extra, ", ".join(sorted(optional)) or "none"))
        for dependency in strings(optional[extra], "project.optional-dependencies." + extra):
            m = own.match(dependency)  # "name[other]": another extra of the project
            if m:
                todo += [e.strip() for e in m[1].split(",")]
            else:
                out.append(dependency)
    return out


try:
    answer = {"dependencies": dependencies(sys.argv[2:])}
except (ValueError, RecursionError) as e:  # tomllib's errors are ValueErrors
    answer = {"error": str(e)}
with open(sys.argv[1], "w") as f:
    json.dump(answer, f)
