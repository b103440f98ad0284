"""Makes a virtual environment of an archive: unpack.py ARCHIVE DIGEST DIRECTORY VERSION PLATFORM."""

import hashlib
import os
import shutil
import sys
import sysconfig
import tarfile

archive, digest, directory, version, platform = sys.argv[1:]
own = ".".join(str(number) for number in sys.version_info[:2])
if (own, sysconfig.get_platform()) != (version, platform):
    sys.exit(f"they are for Python {version} on {platform}, and this is {own} on {sysconfig.get_platform()}")
digested = hashlib.sha256()
with open(archive, "rb") as file:
    while piece := file.read(1 << 20):
        digested.update(piece)
if digested.hexdigest() != digest:
    sys.exit("their archive was changed on its way")
# A copy that broke off is made again.
partial = directory + ".part"
shutil.rmtree(partial, ignore_errors=True)
with tarfile.open(archive) as packed:
    options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    packed.extractall(partial, **options)
executable = getattr(sys, "_base_executable", None) or sys.executable
os.mkdir(os.path.join(partial, "bin"))
for name in ("python", "python3"):
    os.symlink(executable, os.path.join(partial, "bin", name))
with open(os.path.join(partial, "pyvenv.cfg"), "w") as file:
    home = os.path.dirname(executable)
    file.write(f"home = {home}\ninclude-system-site-packages = false\nversion = {version}\n")
os.rename(partial, directory)
os.remove(archive)
