"""Free Code Camp's chat rooms on Gitter, 2014 to 2016.

Each room is a tab-separated file without a header: room id, room, time, user id, user name, message id, text. The user
is the chat account, and a line of a message is a message of ours. Markup, code and quotations are left out.
"""

import csv
import io
import re
import sys
from collections.abc import Collection, Iterator
from typing import NamedTuple

from benchmarks.real_text.checkouts import Checkout
from benchmarks.real_text.cleaning import Message, clean
from benchmarks.real_text.word_frequencies import Languages

REPOSITORY = "freeCodeCamp/gitter-history"
_ENGLISH_ROOMS = """
    40PlusDevs AndroidApp Backend-Challenges Beta Business CampCounselors CamperPracticeProjects Casual
    CodingOnAPhone Contributors CurriculumDevelopment DataScience Design GameDev Gaming Git Hardware HelpBasejumps
    HelpContributors Issues LiveCoding LocalLeaders Music NodeSchool OfflineMode React SQL Saving SelfImprovement
    SocialNetwork TVandMovies TeamViewer TimeCoordinatorApp TwitchTV Wiki YouTube cplusplus dotnet elixir go hikes
    java linux php python ruby textEditorReligiousWars vagrant

    Albuquerque AnnArbor Asheville Atlanta Austin Baltimore BirminghamAlabama BloomingtonNormal Boston Boulder
    ChampaignUrbana Charlotte Chattanooga Chicago Cleveland ColoradoSprings Columbus DallasFortWorth Denver
    DesMoines EastBay FCCLosAngeles HarrisburgPA Houston Indianapolis JacksonMS Kalamazoo KansasCity Knoxville
    Leesburg LosAngeles Miami Milwaukee Minneapolis Missoula Nashville NewHaven NewOrleans NewYorkCity OklahomaCity
    Olympia OrangeCounty Orlando Philadelphia Phoenix Pittsburgh Portland Providence Raleigh Richmond RiversideCA
    RochesterNY Sacramento SaintLouis SaltLakeCity SanAntonio SanDiego SanFrancisco SanJose Seattle Tampa Temecula
    Tulsa WashingtonDC
"""
_PORTUGUESE_ROOMS = """
    portugues BrazilianPortuguese BeloHorizonte Brasilia Campinas Curitiba PortoAlegre Recife RiodeJaneiro Salvador
    SaoPaulo
"""
ROOMS = {"en": _ENGLISH_ROOMS.split(), "pt": _PORTUGUESE_ROOMS.split()}
_BOTS = frozenset(["camperbot", "gitter-badger", "qualitybot", "bothelp42"])

_CODE_BLOCK = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
_SKIPPED_LINE = re.compile(r"\s*(?:>|#+\s|\||[-=*_]{3,}\s*$|    |\t)|.*`")
_CODE = re.compile(
    r"[{}\\]|=>|[=!]==?|\+\+|&&|\|\||;\s*$|</?\w+[^>]*>|\w\(.*\)|\w\.\w+\(|\b(?:var|let|const|function)\s+\w+\s*[=(]"
    r"|^\s*(?:\$|git |npm |sudo |cd |//|/\*|#!)|\w+_\w+|\w+/\w+/\w+"
)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_EMPHASIS = re.compile(r"(\*{1,3}|_{2,3}|~~)(?=\S)(.+?)(?<=\S)\1")
_EMOJI = re.compile(r"(?<![\w/]):[+\w-]+:")
_ADDRESSEES = re.compile(r"^\s*(?:@[\w-]+\s*[,:;]?\s*)+")
_LIST_MARK = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_ACCOUNT_WORD = re.compile(r"[\w-]+")


class Post(NamedTuple):
    """A message in a room."""

    time: str
    message_id: str
    user_id: str
    user_name: str
    text: str


def messages(checkout: Checkout, language: str, languages: Languages) -> Iterator[Message]:
    """The lines of the rooms of a language in the order of time, without bots and without lines in other languages."""
    rooms = [f"archives/{room}.tsv" for room in ROOMS[language]]
    found = {post.message_id: post for _, content in checkout.read(rooms) for post in posts(content.decode())}
    accounts = {post.user_name.lower() for post in found.values() if not languages.is_word(post.user_name.lower())}
    for post in sorted(found.values()):
        if post.user_name.lower() in _BOTS:
            continue
        for line in lines(post.text):
            if languages.reads_as(language, line):
                yield Message(post.user_id, without_accounts(line, accounts))


def posts(content: str) -> Iterator[Post]:
    """The messages of a room's file. Rows with missing columns are left out."""
    csv.field_size_limit(sys.maxsize)
    for row in csv.reader(io.StringIO(content, newline=""), delimiter="\t"):
        if len(row) == 7:
            yield Post(row[2], row[5], row[3], row[4], row[6])


def lines(text: str) -> Iterator[str]:
    r"""The lines of a message that are prose, without markup.

    >>> list(lines("@bob, **hi** :smile:\n> quoted\n`x = 1`\nsee [the page](http://a.org)"))
    ['hi', 'see the page']
    """
    for raw in _CODE_BLOCK.sub("\n", clean(text, lines=True)).split("\n"):
        if _SKIPPED_LINE.match(raw):
            continue
        line = _LINK.sub(r"\1", _LIST_MARK.sub("", raw))
        line = _EMOJI.sub(" ", _EMPHASIS.sub(r"\2", line))
        line = " ".join(_ADDRESSEES.sub("", line).split())
        if line and not _CODE.search(line):
            yield line


def without_accounts(line: str, accounts: Collection[str]) -> str:
    """The line with `<user>` for names of accounts that are written without @."""

    def replaced(match: re.Match[str]) -> str:
        return "<user>" if match[0].lower() in accounts else match[0]

    return _ACCOUNT_WORD.sub(replaced, line)
