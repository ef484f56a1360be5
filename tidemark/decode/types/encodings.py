"""Decodes text in the database's encoding as the server itself would convert it to UTF-8 (`utils/mb/Unicode`, PG 16).

For most encodings Python's codecs give the same result. For the exceptions (vendors' characters in the EUC family,
which Python reads differently or not at all) this module has the server's result; a test compares every character of
every encoding with the server.
"""

import codecs
from collections.abc import Callable

from tidemark.model.errors import NodeUnfit


class UnsupportedEncoding(NodeUnfit):
    """A database whose encoding is not supported."""

    hint = "capture a database in UTF8, or in one of the encodings listed in docs/types.md"


# pg_encoding_to_char's names (`encnames.c`, PG 16) to Python's codecs. SQL_ASCII validates nothing: read as UTF-8.
# MULE_INTERNAL and EUC_TW have no codec in Python.
PYTHON_ENCODINGS = {
    "UTF8": "utf-8",
    "SQL_ASCII": "utf-8",
    "EUC_CN": "gb2312",
    "EUC_JIS_2004": "euc_jis_2004",
    "EUC_JP": "euc_jp",
    "EUC_KR": "euc_kr",
    "ISO_8859_5": "iso8859_5",
    "ISO_8859_6": "iso8859_6",
    "ISO_8859_7": "iso8859_7",
    "ISO_8859_8": "iso8859_8",
    "KOI8R": "koi8_r",
    "KOI8U": "koi8_u",
    "LATIN1": "iso8859_1",
    "LATIN2": "iso8859_2",
    "LATIN3": "iso8859_3",
    "LATIN4": "iso8859_4",
    "LATIN5": "iso8859_9",
    "LATIN6": "iso8859_10",
    "LATIN7": "iso8859_13",
    "LATIN8": "iso8859_14",
    "LATIN9": "iso8859_15",
    "LATIN10": "iso8859_16",
    "WIN866": "cp866",
    "WIN874": "cp874",
    "WIN1250": "cp1250",
    "WIN1251": "cp1251",
    "WIN1252": "cp1252",
    "WIN1253": "cp1253",
    "WIN1254": "cp1254",
    "WIN1255": "cp1255",
    "WIN1256": "cp1256",
    "WIN1257": "cp1257",
    "WIN1258": "cp1258",
}

# By number (`pg_wchar.h`, `enum pg_enc`): the encodings that a database can have; the same in 14 to 18.
SERVER_ENCODINGS = (
    *("SQL_ASCII", "EUC_JP", "EUC_CN", "EUC_KR", "EUC_TW", "EUC_JIS_2004", "UTF8", "MULE_INTERNAL"),
    *("LATIN1", "LATIN2", "LATIN3", "LATIN4", "LATIN5", "LATIN6", "LATIN7", "LATIN8", "LATIN9", "LATIN10"),
    *("WIN1256", "WIN1258", "WIN866", "WIN874", "KOI8R", "WIN1251", "WIN1252"),
    *("ISO_8859_5", "ISO_8859_6", "ISO_8859_7", "ISO_8859_8"),
    *("WIN1250", "WIN1253", "WIN1254", "WIN1255", "WIN1257", "KOI8U"),
)

# By Python's name: consecutive byte sequences, and the server's characters for them.
SERVER_CHARACTERS: dict[str, tuple[tuple[int, str], ...]] = {
    "euc_jp": (
        (0xA1C1, "\uff5e\u2225"),
        (0xA1DD, "\uff0d"),
        (0xA1F1, "\uffe0\uffe1"),
        (0xA2CC, "\uffe2"),
        (
            0xADA1,
            (
                "\u2460\u2461\u2462\u2463\u2464\u2465\u2466\u2467\u2468\u2469\u246a\u246b\u246c\u246d\u246e\u246f"
                "\u2470\u2471\u2472\u2473\u2160\u2161\u2162\u2163\u2164\u2165\u2166\u2167\u2168\u2169"
            ),
        ),
        (
            0xADC0,
            (
                "\u3349\u3314\u3322\u334d\u3318\u3327\u3303\u3336\u3351\u3357\u330d\u3326\u3323\u332b\u334a\u333b"
                "\u339c\u339d\u339e\u338e\u338f\u33c4\u33a1"
            ),
        ),
        (
            0xADDF,
            (
                "\u337b\u301d\u301f\u2116\u33cd\u2121\u32a4\u32a5\u32a6\u32a7\u32a8\u3231\u3232\u3239\u337e\u337d"
                "\u337c\u2252\u2261\u222b\u222e\u2211\u221a\u22a5\u2220\u221f\u22bf\u2235\u2229\u222a"
            ),
        ),
        (0x8FA2C3, "\uffe4"),
        (0x8FF3F3, "\u2170\u2171\u2172\u2173\u2174\u2175\u2176\u2177\u2178\u2179\u2160\u2161"),
        (
            0x8FF4A1,
            (
                "\u2162\u2163\u2164\u2165\u2166\u2167\u2168\u2169\uff07\uff02\u3231\u2116\u2121\u70bb\u4efc\u50f4"
                "\u51ec\u5307\u5324\ufa0e\u548a\u5759\ufa0f\ufa10\u589e\u5bec\u5cf5\u5d53\ufa11\u5fb7\u6085\u6120"
                "\u654e\u663b\u6665\ufa12\uf929\u6801\ufa13\ufa14\u6a6b\u6ae2\u6df8\u6df2\u7028\ufa15\ufa16\u7501"
                "\u7682\u769e\ufa17\u7930\ufa18\ufa19\ufa1a\ufa1b\u7ae7\ufa1c\ufa1d\u7da0\u7dd6\ufa1e\u8362\ufa1f"
                "\u85b0\ufa20\ufa21\u8807\ufa22\u8b7f\u8cf4\u8d76\ufa23\ufa24\ufa25\u90de\ufa26\u9115\ufa27\ufa28"
                "\u9592\uf9dc\ufa29\u973b\u974d\u9751\ufa2a\ufa2b\ufa2c\u999e\u9ad9\u9b72\ufa2d\u9ed1"
            ),
        ),
    ),
    "euc_kr": ((0xA2E8, "\u327e"), (0xA4D4, "\u3164")),
    "euc_jis_2004": (
        (0xA1B1, "\u203e"),
        (0xA1BD, "\u2014"),
        (0xA1EF, "\u00a5"),
        (0xA2D6, "\uff5f\uff60"),
    ),
}
SEQUENCE_BYTES = (2, 3)
_ESCAPE = codecs.lookup_error("surrogateescape")


def python_encoding(encoding: str) -> str:
    """Return Python's name of a database encoding, which is given by PostgreSQL's name."""
    if encoding not in PYTHON_ENCODINGS:
        raise UnsupportedEncoding(f"database encoding {encoding} is not supported")
    return PYTHON_ENCODINGS[encoding]


def decode_text(data: bytes, encoding: str) -> str:
    """Return `data` as text; `encoding` is Python's name. Invalid bytes are kept as surrogate escapes."""
    if encoding not in _REPLACED:
        return data.decode(encoding, "surrogateescape")
    return data.decode(encoding, _handler_name(encoding)).translate(_REPLACED[encoding])


def _handler_name(encoding: str) -> str:
    return f"tidemark-{encoding}"


def _sequences(encoding: str) -> dict[bytes, str]:
    """Return the characters of `SERVER_CHARACTERS` by their bytes."""
    found = {}
    for first, characters in SERVER_CHARACTERS[encoding]:
        for number, character in enumerate(characters, first):
            found[number.to_bytes(2 if first <= 0xFFFF else 3, "big")] = character
    return found


def _decode_strictly(sequence: bytes, encoding: str) -> str | None:
    try:
        return sequence.decode(encoding)
    except UnicodeDecodeError:
        return None


def _handler(added: dict[bytes, str]) -> Callable[[UnicodeError], tuple[str | bytes, int]]:
    """Return a handler of decoding errors that decodes more sequences."""

    def handle(error: UnicodeError) -> tuple[str | bytes, int]:
        assert isinstance(error, UnicodeDecodeError), error
        for length in SEQUENCE_BYTES:
            character = added.get(error.object[error.start : error.start + length])
            if character is not None:
                return character, error.start + length
        return _ESCAPE(error)

    return handle


_REPLACED: dict[str, dict[int, str]] = {}  # sequences that Python reads differently
for _encoding in SERVER_CHARACTERS:
    _pairs = [(_decode_strictly(raw, _encoding), raw, character) for raw, character in _sequences(_encoding).items()]
    _REPLACED[_encoding] = {ord(read): character for read, _, character in _pairs if read is not None}
    codecs.register_error(
        _handler_name(_encoding), _handler({raw: character for read, raw, character in _pairs if read is None})
    )
