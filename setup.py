"""How the package is built and what it needs. torch, megatron-core, torch_npu and apex are found, never installed."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def read_version() -> str:
    """Read the version as text: importing the package would need what is not installed yet."""
    text = (ROOT / "megatron_nanguard" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise ValueError('megatron_nanguard/version.py has no line __version__ = "..."')
    return found.group(1)


def read_readme() -> str:
    """The README, which is the page of the package."""
    return (ROOT / "README.md").read_text(encoding="utf-8")


setup(
    name="megatron_nanguard",
    version=read_version(),
    description="Names the rank, parameter and parallel group that a NaN in Megatron-LM came from",
    long_description=read_readme(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=find_packages(include=["megatron_nanguard", "megatron_nanguard.*"]),
    package_data={
        "megatron_nanguard": ["py.typed"],
        "megatron_nanguard.diagnosis": ["*.json"],
        "megatron_nanguard.report.lang": ["zh/*.json"],
        "megatron_nanguard.report.html": ["assets/*", "templates/*"],
    },
    install_requires=[
        "orjson>=3.9",
        "wrapt>=1.15",
        "safetensors>=0.4",
        "click>=8.1",
        "rich>=13",
        "jinja2>=3.1",
        "plotly>=6",
    ],
    extras_require={
        "nvidia": ["nvidia-ml-py>=12"],
        "test": [
            "pytest>=8",
            "pytest-timeout>=2.2",
            "pytest-xdist>=3.5",
            "ruff>=0.6",
            "mypy>=1.11",
            "jsonschema>=4.20",
            "psutil>=5.9",
            "playwright>=1.45",
            "nvidia-ml-py>=12",
        ],
    },
    entry_points={"console_scripts": ["nanguard = megatron_nanguard.cli:main"]},
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
