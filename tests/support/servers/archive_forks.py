"""A process that has imported the archive command, and forks one for each connection.

`python3 archive_forks.py DESCRIPTOR`: `forked_archiving` starts it as the server's user, with its listening socket.
It is a copy beside the packages, with the standard library only. Its end is the end of its standard input.
"""

import os
import select
import signal
import socket
import sys
from typing import NoReturn

from tidemark_archiver import archive_command

STANDARD_INPUT, STANDARD_ERROR = 0, 2
FAILED = 1


def serve(listener: socket.socket) -> None:
    """Fork for each connection."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended processes need no wait
    while STANDARD_INPUT not in select.select([STANDARD_INPUT, listener.fileno()], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            archive(connection)
        connection.close()


def archive(connection: socket.socket) -> NoReturn:
    """Become an archive command: with the umask, the folder and the arguments of the connection's other side.

    Its standard error is the connection; the last line is the exit code.
    """
    code = FAILED
    try:
        with connection, connection.makefile(encoding="utf-8") as request:
            umask, folder, *arguments = iter(lambda: request.readline().rstrip("\n"), "")
            os.dup2(connection.fileno(), STANDARD_ERROR)
        os.umask(int(umask, 8))
        os.chdir(folder)
        sys.argv[1:] = arguments
        archive_command.main()
    except SystemExit as ended:
        code = int(ended.code or os.EX_OK)
    finally:
        os.write(STANDARD_ERROR, f"exit {code}\n".encode())
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
