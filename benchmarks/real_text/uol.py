"""Essays that students sent to the UOL essay bank: an XML file with `<essay>` elements.

The text as the student typed it is in `<original>`. The author is not named, so each essay is a user.
"""

import bz2
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from benchmarks.real_text.checkouts import Checkout
from benchmarks.real_text.cleaning import Message

REPOSITORY = "gpassero/uol-redacoes-xml"


def messages(checkout: Checkout) -> Iterator[Message]:
    """The paragraphs of all essays."""
    return essays(bz2.decompress(checkout.read_one("uol_redacoes_xml/essays.xml.bz2")))


def essays(content: bytes) -> Iterator[Message]:
    """The paragraphs of the essays of an XML file; an essay is named by its address, or by its place in the file."""
    for number, essay in enumerate(ET.fromstring(content).iter("essay")):
        name = essay.findtext("url") or str(number)
        for paragraph in (essay.findtext("original") or "").split("\n"):
            if paragraph.strip():
                yield Message(name, paragraph)
