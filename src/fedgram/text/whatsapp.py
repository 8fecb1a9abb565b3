"""The reader for WhatsApp's exports of a chat as text.

A message starts with a date and a time, in the way of the phone's language, and ends where the next one starts.
WhatsApp puts its own text between the messages: notices without a sender, and placeholders such as `<Media omitted>`.
It marks some of it with U+200E, and puts numbers and mentions between other direction marks.
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from fedgram.core.errors import InputError
from fedgram.text.chat_exports import Found, Skipped, text_lines

SYSTEM, MEDIA, DELETED = "system message", "media or attachment", "deleted message"

_MARKS = "\u200e\u200f\u202a\u202b\u202c\u2066\u2067\u2068\u2069\ufeff"
_NO_MARKS = dict.fromkeys(map(ord, _MARKS))
_DATE = rf"\d{{1,4}}[{_MARKS}]?[./-]\s?\d{{1,2}}[{_MARKS}]?[./-]\s?\d{{1,4}}\.?(?:\sг\.)?"
_BEFORE_TIME = r"(?:(?:at|à|um|klo|kl\.)\s)?(?:(?:오전|오후|上午|下午|凌晨|清晨|早上|中午|傍晚|晚上|午前|午後)\s?)?"
_AFTER_TIME = r"(?:\s?(?:[ap]\.?\s?m\.?|[πμ]\.?\s?μ\.?|[صم]|ч\.))?"
_TIME = rf"{_BEFORE_TIME}\d{{1,2}}(?:[:.]|\sh\s)\d{{2}}(?:[:.]\d{{2}})?{_AFTER_TIME}"


def _header(stamp: str) -> re.Pattern[str]:
    return re.compile(rf"[{_MARKS}\s]*(?:\[{stamp}\]\s?|{stamp}\s[-–]\s)", re.IGNORECASE)


_DATE_FIRST, _TIME_FIRST = _header(rf"{_DATE}[,،]?\s{_TIME}"), _header(rf"{_TIME},?\s{_DATE}")
_SENDER = re.compile(r"(.{1,100}?):(?:\s|$)")
_FILE_NAME = re.compile(r".*\.\w{1,5} •\s*")
_THING = (
    "image|photo|video|video note|audio|sticker|gif|document|contact card|imagem|vídeo|áudio|figurinha|documento|"
    "cartão do contato|imagen|tarjeta de contacto|bild|dokument|kontaktkarte|vidéo|immagine|afbeelding"
)
_OMITTED = (
    "omitted|ocult[oa]|ocultad[oa]|omitid[oa]s?|não revelad[oa]|ausgeschlossen|weggelassen|ausgelassen|omise?s?|"
    "absente?|omess[oaie]|weggelaten"
)
# Parts of the words for media or a file, and of those for being left out, in the languages of WhatsApp.
_MEDIA_WORDS = (
    r"\b(?:multi)?m[eéèíi]di|\bmedya|\bmeedia|\bmitjans|\bmultivid|fichier|ficheiro|archivo|arquivo|fitxer|fișier|\bpliki"
    r"|datotek|\bfayl|\bvedlegg|tệp|\bмеди|\bмедіа|файл|фајл|πολυμέσ|αρχείο|وسائط|رسانه|پیوست|پيوست|میڈیا|מדיה|メディア"
    "|미디어|媒体|媒體|मीडिया|মিডি|મિડિયા|મીડિયા|ਮੀਡੀਆ|ಮಾಧ್ಯಮ|మీడియా|మాధ్యమ|கோப்பு|ஊடக|മീഡിയ|สื่อ|ມີເດຍ"
)
_LEFT_OUT_WORDS = (
    r"\bom[ieè][ts]|\bocult|revelad|ausgeschlossen|weggela|\butel|\budelad|jätet|jäetud|vynech|pomini|praleist|izostavlj"
    r"|izpuščen|\bbez\b|\bnav\b|\buten\b|elhagy|hiányz|kihagy|atlan|dahil edil|çıkarıl|çıxarıl|buraxıl|disertakan"
    r"|dikecual|disingkir|\bhoq\b|hequr|hazijajum|imeruk|inalis|walang|tkazib|bỏ qua|\bбез\b|пропущен|отсутств"
    "|изостав|қосыл|παραλ|εξαίρεση|استبعاد|حذف|چھوڑ|ہٹا|נכלל|הושמט|なし|無し|含まれ|제외|생략|忽略|省略|略過|बिना|वगळ|বাদ"
    "|છોડી|અવગણ|ਛੱਡ|ਛਡ|ಕೈಬಿಡ|విస్మరించ|விடப்|நீக்க|ഒഴിവാക്ക|ลบ|ບໍ່ລວມ"
)
_MEDIA = re.compile(
    rf"<(?=[^<>]{{0,80}}(?:{_MEDIA_WORDS}|{_THING}))(?=[^<>]{{0,80}}(?:{_LEFT_OUT_WORDS}|{_OMITTED}))[^<>\d\n]{{3,80}}>"
    rf"|<[^<>:：\d\n]{{3,30}}[:：]\s?\d{{3,}}-[^<>\n]{{1,200}}>|(?:{_THING}) (?:{_OMITTED})|null"
    r"|[^\n]+ \((?:file attached|arquivo anexado|archivo adjunto|datei angehängt|fichier joint|file allegato"
    r"|bestand bijgevoegd|файл добавлен|dosya ekli)\)",
    re.IGNORECASE,
)
_MARKED_MEDIA = re.compile(rf"<[^<>]{{3,200}}>|{_MEDIA.pattern}", re.IGNORECASE)
_DELETED = re.compile(
    "(?:this message was deleted|you deleted this message|mensagem apagada|(?:esta|essa) mensagem foi apagada"
    "|você apagou (?:esta|essa) mensagem|(?:se eliminó|eliminaste) este mensaje|este mensaje fue eliminado"
    "|diese nachricht wurde gelöscht|du hast diese nachricht gelöscht|ce message a été supprimé"
    "|vous avez supprimé ce message|questo messaggio è stato eliminato|hai eliminato questo messaggio"
    "|dit bericht is verwijderd|(?:данное|это) сообщение (?:было )?удалено|вы удалили (?:данное|это) сообщение"
    "|bu mesaj silindi|bu mesajı sildiniz|pesan ini (?:telah )?dihapus|تم حذف هذه الرسالة|הודעה זו נמחקה"
    "|このメッセージは削除されました|此訊息已刪除|(?:此|这条)?消息已(?:被)?删除|삭제된 메시지입니다"
    "|waiting for this message.*)[.。]?",
    re.IGNORECASE,
)
_EDITED = re.compile(
    "<(?:this message was edited|mensagem editada|esta mensagem foi editada|se editó este mensaje"
    "|diese nachricht wurde bearbeitet|ce message a été modifié|questo messaggio è stato modificato"
    "|сообщение изменено)>",
    re.IGNORECASE,
)
_MARKED_EDITED = re.compile(r"\u200e<[^<>:\n]+>")
_CALL = re.compile(
    "missed (?:group )?(?:voice|video) call|(?:chamada|ligação) de (?:voz|vídeo) perdida|(?:video)?llamada perdida"
    "|verpasster (?:sprach|video)anruf|appel (?:vocal|vidéo) manqué|(?:video)?chiamata persa"
    "|пропущенный (?:голосовой|видео)[ -]?вызов",
    re.IGNORECASE,
)
_DATED = re.compile(r"\W{0,3}\d{1,4}(?:\D{1,12}\d{1,4}){4}\D[^\n:]{0,100}:\s")


def is_whatsapp_export(path: Path) -> bool:
    """Whether the first non-blank line starts like a message of a WhatsApp export."""
    with path.open("rb") as file:
        head = file.read(1 << 12).decode(errors="replace")
    head = head.lstrip("\ufeff")
    return (_DATE_FIRST.match(head) or _TIME_FIRST.match(head)) is not None


def looks_like_a_chat(path: Path) -> bool:
    """Whether two of the first hundred lines have a date, a time, and a name with a colon, in whatever form."""
    lines = (line[:400] for _, line in islice(text_lines(path), 100))
    return sum(_DATED.match(line) is not None for line in lines) >= 2


def read_whatsapp(path: Path) -> Iterator[Found | Skipped]:
    """The entries of a WhatsApp export.

    Guarantees that every line is part of a message or counted as skipped. A file without any message is refused. For a
    message with an attachment, the caption is kept. A time before a date begins a message only in a file whose first
    message begins so; elsewhere it was typed.
    """
    lines: list[str] = []
    begun, stamp, time_first = 0, "", True
    for number, line in text_lines(path):
        line = line.rstrip("\r\n")
        if header := _DATE_FIRST.match(line) or (time_first and _TIME_FIRST.match(line)):
            if begun:
                yield _message(lines, f"{path}:{begun}", stamp)
            else:
                time_first = _TIME_FIRST.match(line) is not None
            lines, begun, stamp = [line[header.end() :]], number, header[0]
        elif begun:
            lines.append(line)
        elif line.strip(_MARKS).strip():
            yield Skipped("text before the first message", f"{path}:{number}")
    if not begun:
        problem = "is not a WhatsApp export: no line starts with a date and a time"
        raise InputError(path, problem, remedy="export the chat again as text")
    yield _message(lines, f"{path}:{begun}", stamp)


def _message(lines: list[str], place: str, stamp: str) -> Found | Skipped:
    sender = _SENDER.match(lines[0])
    if sender is None or _cuts_a_quotation(sender[1]):
        return Skipped(SYSTEM, place)
    user = " ".join(sender[1].translate(_NO_MARKS).split())
    written = lines[0][sender.end() :]
    text, without = _without_placeholders([written, *lines[1:]])
    if not text.strip() and without:
        return Skipped(without, place)
    if (written.startswith("\u200e") and without is None) or _CALL.fullmatch(text.strip()):
        return Skipped(SYSTEM, place)
    return Found(user, text, place, stamp=stamp)


def _cuts_a_quotation(name: str) -> bool:
    """Whether the colon is inside a quotation, as in: Ann changed the subject to "Lunch: today"."""
    return name.count('"') % 2 == 1 or name.count("“") != name.count("”") or name.count("«") != name.count("»")


def _without_placeholders(lines: list[str]) -> tuple[str, str | None]:
    """The message without WhatsApp's placeholders for media, and what they stood for.

    A placeholder is the whole first line in words that WhatsApp uses, or follows U+200E at the end of a line: a user's
    own `<something>` is text.
    """
    text = _without_edited("\n".join(lines))
    if _DELETED.fullmatch(text.strip(_MARKS).strip()):
        return "", DELETED
    kept, what = [], None
    for number, line in enumerate(text.split("\n")):
        caption, mark, _ = line.partition("\u200e")
        placeholder = line.rpartition("\u200e")[2].strip(_MARKS).strip()
        if (mark or number == 0) and (_MARKED_MEDIA if mark else _MEDIA).fullmatch(placeholder):
            what = MEDIA
            if mark and caption.strip() and not _FILE_NAME.fullmatch(caption):
                kept.append(caption.rstrip())
        else:
            kept.append(line)
    return "\n".join(kept), what


def _without_edited(text: str) -> str:
    """The message without the mark at its end that says that it was edited."""
    before, bracket, rest = text.rpartition("<")
    end = (bracket + rest).rstrip()
    if before.strip(_MARKS).strip() and (_EDITED.fullmatch(end) or _MARKED_EDITED.fullmatch(before[-1:] + end)):
        return before.rstrip("\u200e ")
    return text
