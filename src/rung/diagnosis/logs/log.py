"""Logs as lines: any encoding and size, without colors and progress bars; what a system says in other languages."""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Iterable, Iterator

#: Bytes of a line that are read, at its beginning and at its end.
_HEAD, _TAIL = 4_000, 1_000
#: A line of which one letter in so many could not be decoded is no text.
_NO_TEXT = 10
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_MARKUP = re.compile(
    r"</?(?:span|pre|div|p|b|i|code|font|a|strong|em|u|samp|kbd|tt|mark|small|table|tbody|tr|li|ul|ol|section"
    r"|h[1-6]|html|body)\b[^<>]{0,300}>",
    re.IGNORECASE,
)
#: Between what such a tag parts stands a space.
_BREAK = re.compile(r"<(?:br|/?td|/?th|hr)\b[^<>]{0,300}>", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
#: Spaces of web pages, word processors and chats.
_SPACE = re.compile(r"[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")

#: A file outside of installed packages, as a traceback names it, and as a notebook does.
_OWN_FILE = re.compile(
    r"""(?:(\bFile ["'])(?![^"'\n]{0,300}(?:(?:site|dist)-packages|\.\.\.)[/\\])[^"'\n]{1,400}(?=["'], line \d)"""
    r"""|(?m:^)[^ \n]{0,200}(?:<ipython-input-|[/\\]ipykernel_)[^ \n]{1,200}(?= in \S))"""
)


def encoding_of(head: bytes) -> str:
    """The encoding of a log by its first bytes: UTF-16 as Windows' shells write it, else UTF-8."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if head.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    sample = head[:400]
    if len(sample) >= 8 and sample[1::2].count(0) > len(sample) // 3:
        return "utf-16-le"
    if len(sample) >= 8 and sample[0::2].count(0) > len(sample) // 3:
        return "utf-16-be"
    return "utf-8"


def is_text(line: str) -> bool:
    """Return whether nearly all of a line could be decoded."""
    return line.count("\ufffd") * _NO_TEXT <= len(line)


def utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The stream as UTF-8, whatever it was written in; bytes that are no text stay as they are."""
    decoder: codecs.IncrementalDecoder | None = None
    known = False
    for chunk in chunks:
        if not known:
            known, encoding = True, encoding_of(chunk)
            if encoding != "utf-8":
                decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        yield chunk if decoder is None else decoder.decode(chunk).encode("utf-8", "replace")


def blocks(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """(number of its first line from 1, some whole lines) of a stream in UTF-8, each line as it is but for the longest.

    A line that goes on over chunks keeps its first 4,000 and its last 1,000 bytes.
    """
    number, rest = 1, b""
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if end:
            block = rest + chunk[:end]
            yield number, block[:-1]
            number, rest = number + block.count(b"\n"), b""
        rest = _shortened(rest + chunk[end:])
    if rest:
        yield number, rest


def _shortened(line: bytes) -> bytes:
    return line if len(line) <= _HEAD + _TAIL else line[:_HEAD] + b" " + line[-_TAIL:]


def states(line: bytes) -> list[str]:
    """Return the states that a line showed, one after the other: a carriage return begins a new state of the same
    line."""
    return [_shortened(state).decode("utf-8", "replace") for state in line.split(b"\r") if state]


def lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """(line number from 1, line or state of a line) of a stream in UTF-8."""
    for first, block in blocks(chunks):
        for number, line in enumerate(block.split(b"\n"), first):
            for state in states(line) or [""]:
                yield number, state


def plain(line: str) -> str:
    """A line without terminal colors, markup, entities and control characters; every space is a plain one."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if "<" in line and ">" in line:
        line = _MARKUP.sub("", _BREAK.sub(" ", line))
    if "&" in line and ";" in line:
        line = html.unescape(line)
    if not line.isascii():
        line = _SPACE.sub(" ", line)
    return _CONTROL.sub("", line)


def unnamed(text: str) -> str:
    """Lines without the paths of a program's own files: what somebody called a file says nothing of an error in it."""
    return _OWN_FILE.sub(r"\1", text) if "File " in text or "ipy" in text else text


#: English, and how systems say it in German, French, Spanish, Italian, Portuguese, Polish, Russian, Chinese, Japanese
#: and Korean.
_SAID = (
    (
        "cannot open shared object file",
        "Kann die Shared-Object-Datei nicht öffnen|ne peut ouvrir le fichier d'objet partagé"
        "|impossible d'ouvrir le fichier d'objet partagé|no se puede abrir el archivo del objeto compartido"
        "|no se puede abrir el fichero del objeto compartido|impossibile aprire il file oggetto condiviso"
        "|não é possível abrir arquivo de objeto compartilhado|não foi possível abrir arquivo de objeto compartilhado"
        "|nie można otworzyć pliku obiektu dzielonego|не удаётся открыть общий объектный файл"
        "|невозможно открыть разделяемый объектный файл|无法打开共享对象文件|无法打开共享目标文件|無法開啟共用目的檔案"
        "|共有オブジェクトファイルを開けません|공유 목적 파일을 열 수 없습니다|공유 개체 파일을 열 수 없습니다",
    ),
    (
        "No such file or directory",
        "Datei oder Verzeichnis nicht gefunden|Aucun fichier ou dossier de ce type|No existe el archivo o el directorio"
        "|No existe el fichero o el directorio|File o directory non esistente|Arquivo ou diretório inexistente"
        "|Arquivo ou diretório não encontrado|Nie ma takiego pliku ani katalogu|Нет такого файла или каталога"
        "|没有那个文件或目录|沒有此一檔案或目錄"
        "|そのようなファイルやディレクトリはありません|그런 파일이나 디렉터리가 없습니다",
    ),
    (
        "Illegal instruction",
        "Ungültiger Maschinenbefehl|Instruction non permise|Instrucción ilegal|Istruzione illegale|Instrução ilegal"
        "|Недопустимая инструкция|非法指令|不正な命令です|잘못된 명령어",
    ),
    (
        "core dumped",
        "Speicherabzug geschrieben|核心已转储|コアダンプ|imagem do núcleo gravada|стек памяти сброшен на диск",
    ),
    ("Killed", "Getötet|Processus arrêté|Terminado (killed)|Убито|已杀死|已砍掉|強制終了|죽었음|Unicestwiony"),
    (
        "Segmentation fault",
        "Speicherzugriffsfehler|Erreur de segmentation|Violación de segmento|Falha de segmentação"
        "|Ошибка сегментирования|段错误|セグメンテーション違反|세그멘테이션 오류",
    ),
    ("Bus error", "Bus-Zugriffsfehler|Erreur du bus|总线错误|バスエラー|Ошибка шины"),
    (
        "Cannot allocate memory",
        "Nicht genügend Hauptspeicher verfügbar|Impossible d'allouer de la mémoire|No se pudo asignar memoria"
        "|Не удалось выделить память|无法分配内存|メモリを確保できません|메모리를 할당할 수 없습니다",
    ),
    (
        "No space left on device",
        "Auf dem Gerät ist kein Speicherplatz mehr verfügbar|Aucun espace disponible sur le périphérique"
        "|No queda espacio en el dispositivo|На устройстве не осталось свободного места|设备上没有空间"
        "|デバイスに空き領域がありません|장치에 남은 공간이 없음",
    ),
    (
        "Permission denied",
        "Keine Berechtigung|Permission non accordée|Permiso denegado|Отказано в доступе"
        "|权限不够|許可がありません|허가 거부",
    ),
    (
        "The specified module could not be found",
        "Das angegebene Modul wurde nicht gefunden|Le module spécifié est introuvable"
        "|No se puede encontrar el módulo especificado|No se encontró el módulo especificado"
        "|Impossibile trovare il modulo specificato|Não foi possível encontrar o módulo especificado"
        "|Nie można odnaleźć określonego modułu|Не найден указанный модуль|找不到指定的模块|找不到指定的模組"
        "|指定されたモジュールが見つかりません|지정된 모듈을 찾을 수 없습니다",
    ),
    (
        "The specified procedure could not be found",
        "Die angegebene Prozedur wurde nicht gefunden|La procédure spécifiée est introuvable"
        "|No se encontró el proceso especificado|Impossibile trovare la procedura specificata"
        "|Не найдена указанная процедура|找不到指定的程序|指定されたプロシージャが見つかりません"
        "|지정된 프로시저를 찾을 수 없습니다",
    ),
    (
        "A dynamic link library (DLL) initialization routine failed",
        "Eine DLL-Initialisierungsroutine ist fehlgeschlagen|动态链接库(DLL)初始化例程失败"
        "|动态链接库 (DLL) 初始化例程失败"
        "|ダイナミック リンク ライブラリ (DLL) 初期化ルーチンの実行に失敗しました"
        "|Произошел сбой в программе инициализации библиотеки динамической компоновки (DLL)"
        "|Error en una rutina de inicialización de biblioteca de vínculos dinámicos (DLL)"
        "|DLL(동적 연결 라이브러리) 초기화 루틴을 실행할 수 없습니다",
    ),
    (
        "is not a valid Win32 application",
        "ist keine zulässige Win32-Anwendung|n’est pas une application Win32 valide|не является приложением Win32"
        "|不是有效的 Win32 应用程序|は有効な Win32 アプリケーションではありません|no es una aplicación Win32 válida",
    ),
    (
        "The paging file is too small for this operation to complete",
        "Die Auslagerungsdatei ist zu klein, um diesen Vorgang durchzuführen|页面文件太小，无法完成操作"
        "|ページング ファイルが小さすぎるため、この操作を完了できません|El archivo de paginación es demasiado pequeño"
        "|Le fichier de pagination est insuffisant|Файл подкачки слишком мал"
        "|이 작업을 완료하기 위한 페이징 파일이 너무 작습니다",
    ),
)
_ENGLISH = {phrase: english for english, phrases in _SAID for phrase in phrases.split("|")}
#: Stems of those phrases that have no letter of their language.
_PLAIN = (
    "ompartido",
    "ondiviso",
    "specificat",
    "introuvable",
    "No existe",
    "ou dossier",
    "non permise",
    "Aucun espace",
)


def in_english(line: str) -> str:
    """The line with what the system says in another language in English."""
    if line.isascii() and not any(stem in line for stem in _PLAIN):
        return line
    for phrase, english in _ENGLISH.items():
        if phrase in line:
            line = line.replace(phrase, english)
    return line
