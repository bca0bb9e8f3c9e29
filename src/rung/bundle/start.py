"""The program of a bundle: the ``__main__.py`` of the zip at its end.

Any Python may run this file, so it is written for all of them (hence no annotations); nothing of rung is importable
before ``unpack``. What cannot be imported from a zip, as NumPy's libraries, is unpacked once into the cache, into a
folder that is named by the hash of what lies in it; the model stays in the bundle.
"""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036 (it may be an older one)
    sys.exit(
        "This bundle needs Python 3.11 or later, and this is %d.%d.\n"  # noqa: UP031 (Python 2 reads this file too)
        "What to do\n  1  python3.11 %s   # or a later one" % (sys.version_info[0], sys.version_info[1], sys.argv[0])
    )

import contextlib
import hashlib
import json
import runpy
import shutil
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

USAGE = """\
{name}, with rung {version}

  {file}                    serve the model, and open its page in a browser
  {file} serve [OPTIONS]    the same, with options of rung serve; --help lists them
  {file} run [PROMPT]       answer, or chat on a terminal; options of rung run
  {file} licenses           print the licenses of all that is inside
"""
#: Commands of rung that a bundle has.
COMMANDS = ("serve", "run")


def cache(variable):
    """The folder of the cache, by the name of its variable, as ``rung.core.settings`` finds it."""
    named = os.environ.get(variable, "")
    base = os.environ.get("XDG_CACHE_HOME", "") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.expanduser(named) if named else os.path.join(base, "rung")


class Part:
    """A part of the bundle as a stream, hashed while it is read."""

    def __init__(self, file, begin, size):
        self.file, self.left, self.digest = file, size, hashlib.sha256()
        file.seek(begin)

    def read(self, count):
        """The next ``count`` bytes, or what is left."""
        data = self.file.read(min(count, self.left))
        self.left -= len(data)
        self.digest.update(data)
        return data


def unpack(bundle, settings, name):
    """Unpack a part where it is not yet; return its folder. Ends the program where that cannot be."""
    part = settings[name]
    home = os.path.join(cache(settings["cache"]), "bundles")
    folder = os.path.join(home, part["sha256"][:32])
    if os.path.isdir(folder):
        return folder
    if name == "packages":
        sys.stderr.write("Unpacking the program, once: %d MB into %s\n" % (part["unpacked"] >> 20, home))  # noqa: UP031
    temporary = None
    try:
        os.makedirs(home, exist_ok=True)
        temporary = tempfile.mkdtemp(prefix=".", dir=home)
        extract(bundle, part, temporary)
        os.chmod(temporary, 0o755)
        os.rename(temporary, folder)
    except OSError as error:
        if not os.path.isdir(folder):  # else another process was faster
            sys.exit(
                "The program cannot be unpacked into {}: {}.\nWhat to do\n"
                "  1  {}=FOLDER python {}   # a folder with {:,} MB of room".format(
                    home, error.strerror or error, settings["cache"], sys.argv[0], (part["unpacked"] >> 20) + 1
                )
            )
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def use_ready(bundle, settings):
    """Put kernels where rung looks for them, unless some are there; return the options for what the system prompt
    computed."""
    if settings["ready"] is None:
        return []
    folder = unpack(bundle, settings, "ready")
    kernels = os.path.join(cache(settings["cache"]), "kernels")
    for name in os.listdir(os.path.join(folder, "kernels")):
        if not os.path.isdir(os.path.join(kernels, name)):
            temporary = tempfile.mkdtemp(prefix=".", dir=os.path.join(cache(settings["cache"]), "bundles"))
            with contextlib.suppress(OSError):  # without them kernels are compiled
                os.makedirs(kernels, exist_ok=True)
                shutil.copytree(os.path.join(folder, "kernels", name), temporary, dirs_exist_ok=True)
                os.rename(temporary, os.path.join(kernels, name))
            shutil.rmtree(temporary, ignore_errors=True)
    if not settings["ready"]["prefix_bytes"]:
        return []
    return ["--prefix-cache", "%s:%dMB" % (os.path.join(folder, "prefixes"), room(settings))]  # noqa: UP031


def room(settings):
    """MB for what prompts compute: the system prompt's, and as much again for conversations."""
    return 64 + 2 * (settings["ready"]["prefix_bytes"] >> 20)


def extract(bundle, part, folder):
    """Extract the packages into a folder; raises ``OSError`` where the bundle is damaged."""
    import tarfile
    import zlib

    with open(bundle, "rb") as file:
        stream = Part(file, part["begin"], part["size"])
        with contextlib.suppress(tarfile.TarError, EOFError, zlib.error):  # the hash tells
            with tarfile.open(fileobj=stream, mode="r|gz") as archive:  # type: ignore[call-overload]
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(folder)
            while stream.read(1 << 20):
                pass
    if stream.digest.hexdigest() != part["sha256"]:
        raise OSError("the bundle is damaged: fetch it again")


def keep_bytecode(folder):
    """Keep compiled bytecode in a folder of its own where Python may keep none, as in most containers.

    To compile all that a start imports takes 2 s. Nothing is written anywhere else.

    Python reads all bytecode from there then, the standard library's too: where none is there and none can be written,
    or somebody has named a folder for it, all stays as it is.
    """
    kept = os.path.join(folder, "bytecode")
    useful = os.path.isdir(kept) or os.access(folder, os.W_OK)
    if sys.dont_write_bytecode and sys.pycache_prefix is None and useful:
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = kept
        sys.dont_write_bytecode = False
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # of the processes that rung starts


def standard_library(path):
    """The folders of the standard library in a path."""
    roots = (sys.base_prefix, sys.base_exec_prefix)
    return [each for each in path if each.startswith(roots) and not each.rstrip("/\\").endswith("-packages")]


def set_path(folder, settings):
    """Import from the bundle alone; where its packages are another Python's, from the packages that this one has."""
    program, packages = os.path.join(folder, "program"), os.path.join(folder, "packages")
    own = [each for each in sys.path if os.path.abspath(each or ".") != os.path.abspath(sys.argv[0])]
    if EXTENSION_SUFFIXES[0] in settings["extensions"]:
        sys.path[:] = [program, packages] + standard_library(own)  # noqa: RUF005
        return
    sys.path[:] = own
    missing = [name for name, module in settings["modules"].items() if find_spec(module) is None]
    if missing:
        sys.exit(
            "This bundle has the packages of {}, and this is Python {}.{} for {}, which lacks {}.\nWhat to do\n"
            "  1  {} {}\n  2  python -m pip install {}   # this Python's own".format(
                settings["made_for"],
                sys.version_info[0],
                sys.version_info[1],
                EXTENSION_SUFFIXES[0].strip("."),
                ", ".join(missing),
                settings["interpreter"],
                sys.argv[0],
                " ".join(settings["modules"]),
            )
        )
    sys.path.insert(0, program)


def need_libraries(folder, names):
    """Start again with the libraries of the bundle where the system lacks one that packages need."""
    import ctypes

    own = os.path.join(folder, "libraries")
    path = [each for each in os.environ.get("LD_LIBRARY_PATH", "").split(":") if each]
    if own in path:
        return
    try:
        for name in names:
            ctypes.CDLL(name)
    except OSError:
        os.environ["LD_LIBRARY_PATH"] = ":".join([own] + path)  # noqa: RUF005
        os.execv(sys.executable, sys.orig_argv)


def main():
    """Run ``rung serve`` or ``rung run`` of the model in this bundle."""
    loader = globals()["__loader__"]
    bundle = os.path.abspath(loader.archive)
    settings = json.loads(loader.get_data(os.path.join(loader.archive, "bundle.json")))
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"], ["help"]):
        print(USAGE.format(file=os.path.basename(bundle), **settings))
        return
    if arguments[:1] == ["licenses"]:
        print(loader.get_data(os.path.join(loader.archive, "LICENSES.txt")).decode())
        return
    command, arguments = (
        (arguments[0], arguments[1:]) if arguments[:1] and arguments[0] in COMMANDS else ("serve", arguments)
    )
    if command == "serve" and arguments[:1] and not arguments[0].startswith("-"):
        sys.exit(USAGE.format(file=os.path.basename(bundle), **settings))
    folder = unpack(bundle, settings, "packages")
    need_libraries(folder, settings["libraries"])
    set_path(folder, settings)
    keep_bytecode(folder)
    sys.argv[:] = ["rung", command, bundle] + settings["options"][command] + use_ready(bundle, settings) + arguments
    runpy.run_module("rung", run_name="__main__")


if __name__ == "__main__":
    main()
