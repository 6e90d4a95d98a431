"""How many distinct states there were, in 16 KB however many there are: a HyperLogLog of hashes of 64 bits."""

import math
from collections.abc import Iterable

BITS = 14
REGISTERS = 1 << BITS
"""The standard error is 1.04 / sqrt(REGISTERS): 0.8 %."""


class Sketch:
    """A set of which only the size is known, nearly."""

    def __init__(self, registers: bytes = bytes(REGISTERS)) -> None:
        self.registers = bytearray(registers)

    def add(self, hashes: Iterable[int]) -> None:
        for each in hashes:
            place, rest = each & (REGISTERS - 1), each >> BITS
            zeros = 64 - BITS - rest.bit_length() + 1
            self.registers[place] = max(self.registers[place], zeros)

    def merge(self, registers: bytes) -> None:
        self.registers = bytearray(map(max, self.registers, registers))

    def size(self) -> int:
        raw = 0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS**2 / sum(2.0**-register for register in self.registers)
        empty = self.registers.count(0)
        return round(REGISTERS * math.log(REGISTERS / empty) if raw <= 2.5 * REGISTERS and empty else raw)
