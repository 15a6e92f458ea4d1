# Builds a wheel from a source distribution, in three runs: python3 source.py VERB JOB.json
#
# find: has network and pip, and runs no code of the package. Downloads the newest source
# distribution that matches {"name", "specifiers": [...], "hash": "" or the required hash,
# "file": "" or the file's name} to sdist/, and writes found.json.
# requires: has no network. Writes to requires.json the packages that the build back end
# demands in addition to build-system.requires.
# build: has no network. Writes the wheel to dist/.
import email.parser
import hashlib
import json
import os
import re
import site
import sys
import tarfile
import tomllib
import zipfile

LIMIT = 1 << 30
NATIVE = (".c", ".cc", ".cpp", ".cxx", ".pyx", ".pxd", ".f", ".f90", ".s", ".m", "/meson.build", "/CMakeLists.txt", "/configure", "/Makefile")


def fail(code, words):
    json.dump({"error": code, "words": words}, open("found.json", "w"))
    sys.exit(0)


def find(job):
    from pip._internal.commands import create_command

    command = create_command("download")
    options, _ = command.parse_args(["--no-cache-dir", "--disable-pip-version-check", "x"])
    with command.main_context():
        session = command.get_default_session(options)
        take(job, session, command._build_package_finder(options=options, session=session))


def take(job, session, finder):
    from pip._vendor.packaging.specifiers import SpecifierSet
    from pip._vendor.packaging.version import Version

    wanted = SpecifierSet(",".join(job["specifiers"]))
    python = Version("%d.%d.%d" % sys.version_info[:3])
    best = None
    for c in finder.find_all_candidates(job["name"]):
        link, version = c.link, Version(str(c.version))
        if link.is_wheel or not link.filename.endswith((".tar.gz", ".zip")):
            continue
        if job["file"] and link.filename != job["file"]:
            continue
        if not wanted.contains(version, prereleases=bool(wanted.prereleases)):
            continue
        if link.requires_python and not SpecifierSet(link.requires_python).contains(python):
            continue
        if link.yanked_reason is not None and not any(s.startswith("==") for s in job["specifiers"]):
            continue
        if best is None or version > best[0]:
            best = (version, link)
    if best is None:
        fail("none", "")
    version, link = best
    os.makedirs("sdist", exist_ok=True)
    path = os.path.join("sdist", os.path.basename(link.filename))
    response = session.get(link.url_without_fragment, headers={"Accept-Encoding": "identity"}, stream=True)
    if response.status_code != 200:
        print("HTTP error %d while getting %s" % (response.status_code, link.filename), file=sys.stderr)
        sys.exit(1)
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as f:
        for chunk in response.raw.stream(1 << 16, decode_content=False):
            size += len(chunk)
            if size > LIMIT:
                fail("bad", "more than 1 GiB")
            digest.update(chunk)
            f.write(chunk)
    got = "sha256:" + digest.hexdigest()
    promised = "sha256:" + link.hash if link.hash_name == "sha256" else got
    length = response.headers.get("Content-Length")
    if length and int(length) != size:
        print("Connection reset: %s ended after %d of %s bytes" % (link.filename, size, length), file=sys.stderr)
        sys.exit(1)
    for want in (job["hash"], promised):
        if want and want != got:
            fail("changed", "Hash mismatch for `%s`: got %s, want %s" % (link.filename, got, want))
    try:
        names, project = look(path)
        system = tomllib.loads(project.decode()).get("build-system", {})
        requires = system.get("requires", ["setuptools", "wheel"]) if system else ["setuptools", "wheel"]
    except Exception as e:
        fail("bad", "%s: %s" % (link.filename, e))
    json.dump({
        "file": link.filename, "version": str(version), "hash": got, "requires": requires,
        "native": any(n.endswith(NATIVE) for n in names),
    }, open("found.json", "w"))


def look(path):
    """Returns the names in an archive, and its pyproject.toml (b"" if absent)."""
    if path.endswith(".zip"):
        with zipfile.ZipFile(path) as z:
            names = z.namelist()
            top = [n for n in names if re.fullmatch(r"[^/]+/pyproject\.toml", n)]
            return names, z.open(top[0]).read(1 << 20) if top else b""
    names, project = [], b""
    with tarfile.open(path) as t:
        for m in t:
            names.append(m.name)
            if m.isfile() and re.fullmatch(r"(\./)?[^/]+/pyproject\.toml", m.name):
                project = t.extractfile(m).read(1 << 20)
            if len(names) > 250000:
                raise ValueError("more than 250000 files")
    return names, project


def unpack(path):
    if path.endswith(".zip"):
        with zipfile.ZipFile(path) as z:
            z.extractall("src")
    else:
        with tarfile.open(path) as t:
            t.extractall("src", filter="data") if hasattr(tarfile, "data_filter") else t.extractall("src")
    tops = [d for d in os.listdir("src") if os.path.isdir(os.path.join("src", d))]
    if len(tops) != 1:
        raise SystemExit("a source distribution must have a single top directory, not %s" % tops)
    os.chdir(os.path.join("src", tops[0]))


def backend():
    """Returns the build backend object of PEP 517."""
    system = {}
    if os.path.exists("pyproject.toml"):
        system = tomllib.load(open("pyproject.toml", "rb")).get("build-system", {})
    for p in reversed(system.get("backend-path", [])):
        sys.path.insert(0, os.path.join(os.getcwd(), p))
    module, _, attributes = system.get("build-backend", "setuptools.build_meta:__legacy__").partition(":")
    __import__(module)
    found = sys.modules[module]
    for a in filter(None, attributes.split(".")):
        found = getattr(found, a)
    return found


def main():
    verb, job = sys.argv[1], json.load(open(sys.argv[2]))
    if verb == "find":
        return find(job)
    at, out = os.path.join("/function/sdist", job["file"]), os.getcwd()
    site.addsitedir("/function/env")  # sys.path alone would ignore .pth files
    unpack(at)
    made = backend()
    if verb == "requires":
        hook = getattr(made, "get_requires_for_build_wheel", None)
        more = list(hook() or []) if hook else []
        json.dump(more, open(os.path.join(out, "requires.json"), "w"))
        return
    os.makedirs(os.path.join(out, "dist"), exist_ok=True)
    made.build_wheel(os.path.join(out, "dist"))


main()
