"""Why Spark did not get its jars, from what Ivy, which it fetches them with, wrote into the log.

- Nothing was found in any repository: ``unresolved dependency``.
- A local repository has a jar's description without the jar: ``download failed``. Somebody else's download was cut off there.
  Ivy then asks no other repository, and its cache remembers that, so both folders must go.
"""

from __future__ import annotations

import re
from pathlib import Path

_UNRESOLVED = re.compile(r"unresolved dependency:\s*(.*)")
_FAILED = re.compile(r"\[download failed: (.*?)\]")
_COORDINATE = re.compile(r"([^\s,#]+)#([^\s,;]+);([^\s,!]+)!\S+?\.jar")
_CACHE = re.compile(r"Ivy Default Cache set to: (.*)")
_TRIED = re.compile(r"^\s*file:(/\S.*\.jar)\s*$", re.MULTILINE)
_SHOWN = 3


def why_no_jars(log: str) -> str | None:
    """What is wrong and what to do; None if the jars are not what is wrong."""
    if failed := _FAILED.search(log):
        jars = _COORDINATE.findall(failed[1])
        what = ", ".join(":".join(jar) for jar in jars[:_SHOWN]) or failed[1]
        if folders := _half_filled(log, jars):
            return (
                f"the local repository of jars is half-filled: it has the description of {what} and not the jar. "
                f"Delete {' and '.join(folders)}, and start again"
            )
        return f"Spark's jars can't be downloaded ({what}): the repository broke off; start again"
    if missing := sorted(set(_UNRESOLVED.findall(log))):
        return (
            f"Spark's jars can't be downloaded ({', '.join(each.strip() for each in missing[:_SHOWN])}): allow access to a Maven "
            "repository once, or set a mirror with spark.conf: {spark.jars.repositories: https://…} in the pipeline file"
        )
    return None


def _half_filled(log: str, jars: list[tuple[str, str, str]]) -> list[str]:
    """The folders of local repositories that have a part of these jars, and then what Ivy's cache remembers of them."""
    tried = [Path(path).parent for path in _TRIED.findall(log)]
    found = [folder for folder in dict.fromkeys(tried) if folder.is_dir() and not list(folder.glob("*.jar"))]
    if not found:
        return []
    if cache := _CACHE.search(log):
        found += [Path(cache[1].strip(), group, name) for group, name, _ in jars]
    return [str(folder) for folder in found if folder.is_dir()]
