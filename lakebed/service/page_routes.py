"""The web page of the service: its files, which anybody may have, and what it asks beyond the routes that are for everybody.

The page has no rights of its own. It sends the token that its user gave it as a bearer token, which no page of another site has
and no browser sends by itself. Nothing is allowed for where a request comes from, so another site can't start anything here.
"""

from __future__ import annotations

from collections.abc import Callable

from lakebed.service.answers import NAME, TEXT, record
from lakebed.service.problems import Refused
from lakebed.service.routes import Answer, Call, Route
from lakebed.ui import pages
from lakebed.ui.texts import blotted, utf8
from lakebed.ui.watch import Watched

FILES = pages.files("warehouse.html")


def _who(call: Call) -> Answer:
    return Answer(value={"name": call.caller.name, "role": call.caller.role.name.lower()})


def _of_table(path: str) -> Callable[[Call], Answer]:
    """Answers about one table, as the page of a pipeline has them. Here ``path`` is the table's name."""

    def handle(call: Call) -> Answer:
        def find(name: str) -> Watched:
            root = call.catalog.root_of(name)
            return call.watched.find(root, utf8(blotted(root)))

        try:
            found = pages.answers(find)[path]({name: [value] for name, value in call.query.items()})
        except pages.Refused as refused:
            raise Refused(refused.status, str(refused)) from None
        return Answer(value=found.body, etag=found.tag)

    return handle


ROUTES = (
    Route(
        method="GET",
        path="/v1/whoami",
        operation="see_caller",
        summary="Whose token it is, and what it may do.",
        answers={200: record({"name": {"type": "string"}, "role": {"enum": ["reader", "operator"]}})},
        handle=_who,
    ),
)
OWN_ROUTES = tuple(
    Route(
        method="GET",
        path=path,
        operation=path,
        summary="Used by the page alone, and may change.",
        answers={200: {}},
        query={"path": NAME, "id": TEXT, "section": TEXT},
        handle=_of_table(path),
    )
    for path in pages.answers(lambda name: None)
)
"""What is not described, because the page alone asks it."""
