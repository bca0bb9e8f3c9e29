"""Waits in a program under ``rung exec`` for the import of torch, after the program's own ``sitecustomize`` has run.

Every Python that the program starts finds this file through PYTHONPATH, of whatever version and environment, so it is
written for all of them (hence no annotations) and leaves alone those that rung does not run on.
"""

import os
import sys


class Watch(object):  # noqa: UP004 (Python 2 reads this file too)
    """A finder that finds nothing itself: it sees to it that a hook runs when a module has been imported."""

    def __init__(self, settings):
        self.settings = settings
        self.hooks = dict(hook.split(":") for hook in settings["hooks"].split(","))

    def find_spec(self, name, path=None, target=None):
        """The module's own spec, with the hook behind its execution; None for all other modules."""
        if name not in self.hooks:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                self.follow(spec.loader, name)
                return spec
        return None

    def follow(self, loader, name):
        """Runs the hook when that loader has executed the module."""
        execute = loader.exec_module

        def exec_module(module):
            del loader.exec_module
            execute(module)
            self.start(self.hooks.pop(name, None))

        loader.exec_module = exec_module

    def start(self, hook):
        """Imports a hook's module and calls it. What fails there is said and does not stop the program."""
        if hook is None:
            return
        import importlib

        sys.meta_path.append(Home(self.settings["home"]))
        try:
            module, function = hook.rsplit(".", 1)
            getattr(importlib.import_module(module), function)(self.settings)
        except Exception as error:
            sys.stderr.write("rung exec cannot help here: %s: %s\n" % (type(error).__name__, error))  # noqa: UP031
        finally:
            sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Home)]


class Home(object):  # noqa: UP004
    """Finds the rung that was started, where the program's environment has none."""

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        """The spec of the package rung."""
        if name != "rung":
            return None
        from importlib.util import spec_from_file_location

        file = os.path.join(self.folder, "__init__.py")
        return spec_from_file_location(name, file, submodule_search_locations=[self.folder])


def hand_over(own):
    """Removes this file's traces from the import system and runs the ``sitecustomize`` that it stands before."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", own.__name__) != own.__name__:
            raise
        sys.modules[own.__name__] = own


if sys.version_info >= (3, 11) and os.environ.get("RUNG_EXEC"):
    sys.meta_path.insert(0, Watch(dict(line.split("=", 1) for line in os.environ["RUNG_EXEC"].splitlines())))
hand_over(sys.modules.pop(__name__))
