"""The one place where text is cleaned before a person or a terminal gets it."""

import unicodedata

# Control characters, marks of the direction of writing, halves of characters, ends of lines and of paragraphs
OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str) -> str:
    """A text in one line, without anything that a terminal would obey: escape sequences become visible."""
    if text.isprintable():
        return text
    return "".join(map(_show, text.replace("\n", " ")))


def _show(character: str) -> str:
    obeyed = unicodedata.category(character) in OBEYED
    return character.encode("unicode_escape").decode() if obeyed else character
