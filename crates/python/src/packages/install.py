"""Finds and installs packages: install.py STEP, with a JSON object on standard input.

Each step is a process in a sandbox of its own, and writes its result to result.json.
"""

import base64
import glob
import json
import os
import platform
import re
import ssl
import subprocess
import sys
import sysconfig
import urllib.parse
import urllib.request

MAX_PAGE_BYTES = 64 << 20
# The newest minor version that is worth naming; pip knows no ranges.
OLDEST_GLIBC = 5
# The first pip with `--report` and `--python`.
OLDEST_PIP = (22, 3)
# Runs pip for another Python: VERSION MACHINE ARGUMENTS. Of its own, pip compares conditions of dependencies with the
# Python that runs it, whatever `--python-version` says.
FOREIGN_PIP = """
import runpy, sys
from pip._vendor.packaging import markers
own, version, machine = markers.default_environment, sys.argv.pop(1), sys.argv.pop(1)
target = {"python_version": version.rpartition(".")[0], "python_full_version": version}
target.update(implementation_version=version, platform_machine=machine)
markers.default_environment = lambda: {**own(), **target}
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def describe(_):
    """Describes the Python that runs this."""
    is_musl = "musl" in (sysconfig.get_config_var("SOABI") or "")
    name, version = platform.libc_ver()
    return {
        "executable": getattr(sys, "_base_executable", None) or sys.executable,
        "version": list(sys.version_info[:3]),
        "tag": sys.implementation.cache_tag,
        "platform": sysconfig.get_platform(),
        "libc": "musl" if is_musl else f"{name} {version}",
        "user": [os.getuid(), os.getgid()],
        "default_index": default_index(),
    }


def default_index():
    """Returns the index of pip without settings."""
    try:
        import ensurepip

        bundled = os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")
        sys.path += glob.glob(os.path.join(bundled, "pip-*.whl"))
    except ImportError:
        pass
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        return None
    return PyPI.simple_url


def find_hosts(request):
    """Returns the hosts of the files that the indexes offer, as HOST:PORT."""
    hosts, problem = set(), None
    remote = [index for index in request["indexes"] if not index.startswith("file:")]
    for index in remote:
        for name in request["names"]:
            try:
                hosts |= hosts_of_page(index, name)
            except Exception as error:
                problem = f"{name}: {type(error).__name__}: {error}"
    if problem and not hosts:
        sys.exit(f"The package index did not answer for {problem}")
    return sorted(hosts)


def hosts_of_page(index, name):
    parts = urllib.parse.urlsplit(index)
    address = parts.hostname + (f":{parts.port}" if parts.port else "")
    url = parts._replace(netloc=address).geturl().rstrip("/") + f"/{name}/"
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
    asked = urllib.request.Request(url, headers={"Accept": accept})
    if parts.username:
        user = urllib.parse.unquote(parts.username)
        password = urllib.parse.unquote(parts.password or "")
        encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
        asked.add_unredirected_header("Authorization", "Basic " + encoded)
    context = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))
    with urllib.request.urlopen(asked, timeout=60, context=context) as answer:
        page = answer.read(MAX_PAGE_BYTES)
        base = answer.url
        is_json = "json" in answer.headers.get("Content-Type", "")
    if is_json:
        links = [file["url"] for file in json.loads(page)["files"]]
    else:
        links = re.findall(r'href="([^"#]+)', page.decode("utf-8", "replace"))
    found = set()
    for link in links:
        target = urllib.parse.urlsplit(urllib.parse.urljoin(base, link))
        if target.hostname:
            port = target.port or {"http": 80}.get(target.scheme, 443)
            found.add(f"{target.hostname}:{port}")
    return found


def run(arguments, **options):
    status = subprocess.run(arguments, stdout=sys.stderr, **options).returncode
    if status:
        sys.exit(status if status > 0 else 128 - status)


def pip(request):
    """Returns the command of pip, which comes from the Python, from its archive of pip, or from the index."""
    own, other = ([python, "-m", "pip"] for python in (sys.executable, "tool/bin/python"))
    if version_of(own) >= OLDEST_PIP:
        return own
    run([sys.executable, "-m", "venv", "tool"])
    if version_of(other) < OLDEST_PIP:
        newer = "pip>=" + ".".join(str(number) for number in OLDEST_PIP)
        run(other + ["install", "--quiet", "--no-input", "--upgrade"] + sources(request) + [newer])
    return other


def version_of(command):
    printed = subprocess.run(command + ["--version"], capture_output=True, text=True).stdout
    numbers = re.match(r"pip (\d+)\.(\d+)", printed)
    return tuple(map(int, numbers.groups())) if numbers else (0, 0)


def sources(request):
    """Returns the options for where packages come from; uv and pip share them."""
    options = []
    indexes = request["indexes"]
    if indexes:
        options += ["--index-url", indexes[0]]
        for extra in indexes[1:]:
            options += ["--extra-index-url", extra]
    else:
        options += ["--no-index"]
    for place in request["find_links"]:
        options += ["--find-links", place]
    return options


def machine_of(target):
    return target["platform"].split("-", 1)[1].replace("-", "_")


def foreign(target):
    """Returns the options of pip for another Python than this one."""
    version, machine = target["version"], machine_of(target)
    options = ["--only-binary", ":all:", "--implementation", "cp"]
    options += ["--python-version", f"{version[0]}.{version[1]}"]
    if target["libc"] == "musl":
        platforms = [f"musllinux_1_{minor}_{machine}" for minor in (2, 1, 0)]
    else:
        newest = int(target["libc"].split(".")[1])
        minors = range(newest, OLDEST_GLIBC - 1, -1)
        platforms = [f"manylinux_2_{minor}_{machine}" for minor in minors]
        platforms += [f"manylinux2014_{machine}"]
    for name in platforms + [f"linux_{machine}"]:
        options += ["--platform", name]
    return options


def resolve(request):
    """Returns the packages to install: name, version, hashes, and the URL of one that no index offers."""
    specifiers, uv = request["specifiers"], request["uv"]
    if uv:
        with open("specifiers.in", "w") as file:
            file.write("\n".join(specifiers))
        command = [uv, "pip", "compile", "specifiers.in", "--output-file", "pinned.txt", "--quiet"]
        command += ["--generate-hashes", "--no-header", "--no-annotate", "--python", sys.executable]
        run(command + sources(request))
        with open("pinned.txt") as file:
            return [pinned_of_line(line) for line in file.read().replace("\\\n", " ").splitlines() if line.strip()]
    command = pip(request)
    if request["target"]:
        version = ".".join(str(number) for number in request["target"]["version"])
        command = command[:1] + ["-c", FOREIGN_PIP, version, machine_of(request["target"])]
    command += ["install", "--dry-run", "--ignore-installed", "--report", "report.json"]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--target", "unused"]
    if request["target"]:
        command += foreign(request["target"])
    run(command + sources(request) + ["--"] + specifiers)
    with open("report.json") as file:
        report = json.load(file)
    return [pinned_of_report(package) for package in report["install"]]


def pinned_of_line(line):
    requirement, *hashes = line.split(" --hash=")
    requirement = requirement.split(";")[0].strip()
    name, at, url = (part.strip() for part in requirement.partition("@"))
    version = ""
    if not at:
        name, _, version = (part.strip() for part in requirement.partition("=="))
    hashes = [each.strip() for each in hashes]
    return {"name": name.split("[")[0], "version": version, "hashes": hashes, "url": url or None}


def pinned_of_report(package):
    download, about = package["download_info"], package["metadata"]
    archive = download.get("archive_info", {})
    hashes = archive.get("hashes") or dict([archive["hash"].split("=", 1)])
    return {
        "name": about["name"],
        "version": about["version"],
        "hashes": [f"{name}:{digest}" for name, digest in hashes.items()],
        "url": download["url"] if package.get("is_direct") else None,
    }


def install(request):
    """Installs the packages into a virtual environment, whose directory exists."""
    directory, target = request["directory"], request["target"] or describe(None)
    version = ".".join(str(number) for number in target["version"][:2])
    site = os.path.join(directory, "lib", f"python{version}", "site-packages")
    os.makedirs(site)
    os.mkdir(os.path.join(directory, "bin"))
    for name in ("python", "python3"):
        os.symlink(target["executable"], os.path.join(directory, "bin", name))
    home = os.path.dirname(target["executable"])
    with open(os.path.join(directory, "pyvenv.cfg"), "w") as file:
        file.write(f"home = {home}\ninclude-system-site-packages = false\nversion = {version}\n")
    with open("pinned.txt", "w") as file:
        for package in request["packages"]:
            url = package["url"]
            named = f"{package['name']} @ {url}" if url else f"{package['name']}=={package['version']}"
            file.write(" ".join([named] + [f"--hash={each}" for each in package["hashes"]]) + "\n")
    python = os.path.join(directory, "bin", "python")
    options = ["--no-deps", "--require-hashes", "--requirement", "pinned.txt"]
    if request["uv"]:
        command = [request["uv"], "pip", "install", "--python", python, "--link-mode", "copy"]
        run(command + ["--compile-bytecode", "--quiet"] + options + sources(request))
        return None
    command = pip(request)
    if request["target"]:
        where = ["--target", site, "--no-compile"] + foreign(target)
        command += ["install"] + where
    else:
        command += ["--python", python, "install"]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--no-warn-script-location"]
    run(command + options + sources(request))


STEPS = {"describe": describe, "hosts": find_hosts, "resolve": resolve, "install": install}
result = STEPS[sys.argv[1]](json.load(sys.stdin))
with open("result.json", "w") as output:
    json.dump(result, output)
