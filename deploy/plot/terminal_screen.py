"""Emulates a terminal's screen: interprets what programs like nsactl, tmux and top write.

Supports printing, wrapping and scrolling, carriage return, backspace, tabs, cursor movement, erasing, inserting and deleting lines,
colours (16, 256, true colour) and the alternate screen. Every character is one column wide. Other escape sequences are ignored.
"""
from __future__ import annotations  # the oldest Python that works is 3.8

import dataclasses
import re
import unicodedata

SEQUENCE = re.compile(r"\x1b(?:\[([0-9;:?<=>]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()*+][0-9A-Za-z]|([0-9A-Za-z=>]))")
BEGINNING = re.compile(r"\x1b(?:\[[0-9;:?<=>]*[ -/]*|\][^\x07\x1b]*\x1b?|[()*+])?$")


@dataclasses.dataclass(frozen=True)
class Style:
    front: int | tuple | None = None
    back: int | tuple | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    reverse: bool = False


PLAIN = Style()
SWITCHES = {1: {"bold": True}, 2: {"dim": True}, 3: {"italic": True}, 4: {"underline": True}, 7: {"reverse": True},
            22: {"bold": False, "dim": False}, 23: {"italic": False}, 24: {"underline": False}, 27: {"reverse": False},
            39: {"front": None}, 49: {"back": None}}


class Screen:
    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.cells = [self._blank() for _ in range(rows)]
        self.x = self.y = 0
        self.saved = (0, 0)
        self.other = None  # the main screen's cells while the alternate one is shown
        self.style = PLAIN
        self.pending = ""  # the beginning of an escape sequence whose rest has not arrived

    def _blank(self):
        return [(" ", PLAIN)] * self.columns

    def lines(self):
        """[[(character, style)]] from top to bottom."""
        return [list(line) for line in self.cells]

    def text(self):
        return "\n".join("".join(letter for letter, _ in line).rstrip() for line in self.cells).rstrip("\n")

    def feed(self, data):
        data, self.pending = self.pending + data, ""
        at = 0
        while at < len(data):
            if data[at] != "\x1b":
                self._letter(data[at])
                at += 1
                continue
            match = SEQUENCE.match(data, at)
            if match:
                self._sequence(match)
                at = match.end()
            elif BEGINNING.match(data, at):
                self.pending = data[at:]
                return
            else:
                at += 1

    def _letter(self, letter):
        if letter == "\r":
            self.x = 0
        elif letter == "\n":
            self._line_feed()
        elif letter == "\b":
            self.x = max(0, min(self.x, self.columns - 1) - 1)
        elif letter == "\t":
            self.x = min(self.columns - 1, (self.x // 8 + 1) * 8)
        elif letter >= " " and letter != "\x7f" and not unicodedata.combining(letter):
            # The cursor stays after the last column until the next character arrives.
            if self.x >= self.columns:
                self.x = 0
                self._line_feed()
            self.cells[self.y][self.x] = (letter, self.style)
            self.x += 1

    def _line_feed(self):
        if self.y < self.rows - 1:
            self.y += 1
        else:
            self.cells = self.cells[1:] + [self._blank()]

    def _sequence(self, match):
        parameters, final, single = match.groups()
        if single:
            if single == "7":
                self.saved = (self.x, self.y)
            elif single == "8":
                self.x, self.y = self.saved
        elif final == "m":
            self._style(parameters)
        elif parameters is not None and parameters.startswith("?"):
            if parameters in ("?1049", "?47", "?1047"):
                self._alternate(final == "h")
        elif parameters is not None:
            numbers = [int(number) if number.isdigit() else 0 for number in parameters.split(";")]
            self._control(final, numbers)

    def _alternate(self, on):
        if on and self.other is None:
            self.other, self.cells = (self.cells, self.x, self.y), [self._blank() for _ in range(self.rows)]
        elif not on and self.other is not None:
            (self.cells, self.x, self.y), self.other = self.other, None

    def _control(self, final, numbers):
        count = max(numbers[0], 1)
        self.x = min(self.x, self.columns - 1) if final in "ABCDEFGHfdsJKXP@LM" else self.x
        if final == "A":
            self.y = max(0, self.y - count)
        elif final == "B":
            self.y = min(self.rows - 1, self.y + count)
        elif final == "C":
            self.x = min(self.columns - 1, self.x + count)
        elif final == "D":
            self.x = max(0, self.x - count)
        elif final in "EF":
            self.x = 0
            self.y = min(self.rows - 1, max(0, self.y + (count if final == "E" else -count)))
        elif final == "G":
            self.x = min(self.columns, count) - 1
        elif final == "d":
            self.y = min(self.rows, count) - 1
        elif final in "Hf":
            column = numbers[1] if len(numbers) > 1 else 1
            self.y, self.x = min(self.rows, count) - 1, min(self.columns, max(column, 1)) - 1
        elif final == "s":
            self.saved = (self.x, self.y)
        elif final == "u":
            self.x, self.y = self.saved
        else:
            self._erase(final, numbers[0], count)

    def _erase(self, final, mode, count):
        line, blank = self.cells[self.y], self._blank()
        if final == "K" or final == "J":
            if mode == 0:
                self.cells[self.y] = line[:self.x] + blank[self.x:]
            elif mode == 1:
                self.cells[self.y] = blank[:self.x + 1] + line[self.x + 1:]
            else:
                self.cells[self.y] = blank
        if final == "J":
            for row in range(self.rows):
                if mode >= 2 or (mode == 0 and row > self.y) or (mode == 1 and row < self.y):
                    self.cells[row] = self._blank()
        elif final == "X":
            self.cells[self.y] = line[:self.x] + blank[:count] + line[self.x + count:] if self.x + count < self.columns else (
                line[:self.x] + blank[self.x:])
        elif final == "P":
            self.cells[self.y] = (line[:self.x] + line[self.x + count:] + blank)[:self.columns]
        elif final == "@":
            self.cells[self.y] = (line[:self.x] + blank[:count] + line[self.x:])[:self.columns]
        elif final == "L":
            self.cells = (self.cells[:self.y] + [self._blank() for _ in range(count)] + self.cells[self.y:])[:self.rows]
        elif final == "M":
            kept = self.cells[:self.y] + self.cells[self.y + count:]
            self.cells = kept + [self._blank() for _ in range(self.rows - len(kept))]

    def _style(self, parameters):
        numbers = [int(number) if number.isdigit() else 0 for number in parameters.replace(":", ";").split(";")]
        while numbers:
            number = numbers.pop(0)
            if number == 0:
                self.style = PLAIN
            elif number in SWITCHES:
                self.style = dataclasses.replace(self.style, **SWITCHES[number])
            elif number in (38, 48):
                value = self._extended(numbers)
                self.style = dataclasses.replace(self.style, **{"front" if number == 38 else "back": value})
            elif 30 <= number <= 37 or 90 <= number <= 97:
                self.style = dataclasses.replace(self.style, front=number - 30 if number < 90 else number - 82)
            elif 40 <= number <= 47 or 100 <= number <= 107:
                self.style = dataclasses.replace(self.style, back=number - 40 if number < 100 else number - 92)

    @staticmethod
    def _extended(numbers):
        """The colour after code 38 or 48, given as 5;N or 2;R;G;B; removes these numbers from the list."""
        kind = numbers.pop(0) if numbers else 0
        if kind == 5 and numbers:
            return numbers.pop(0)
        if kind == 2 and len(numbers) >= 3:
            return tuple(numbers.pop(0) for _ in range(3))
        return None
