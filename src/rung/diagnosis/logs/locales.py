"""Say what a system says in another language, read as English: loader, signals and error numbers of Linux, DLLs of
Windows.

Python, CUDA and their libraries speak English everywhere; only what the system itself adds is translated.
"""

from __future__ import annotations

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
