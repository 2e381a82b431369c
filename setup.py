"""Copies the pipeline from the top of the repository into a wheel, for `photofinish init`."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

COPIED = ("dvc.yaml", "stages/*.py", ".dvc/plots/*.json", "reference/README.md")
COPIED += ("examples/my_model.py", "examples/*.yaml", "examples/own-*/*.py")
ROOT = Path(__file__).parent


class BuildWithPipeline(build_py):
    """Adds the files to those of the package. An editable install reads them where they are."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        for file in self.pipeline_files():
            target = Path(self.build_lib, "photofinish", "pipeline", file)
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(ROOT / file), str(target))

    def get_source_files(self):
        """Return all sources, which a source distribution needs too."""
        return [*super().get_source_files(), *map(str, self.pipeline_files())]

    def pipeline_files(self):
        return [path.relative_to(ROOT) for name in COPIED for path in sorted(ROOT.glob(name))]


setup(cmdclass={"build_py": BuildWithPipeline})
