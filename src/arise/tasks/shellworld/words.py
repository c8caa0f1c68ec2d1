"""The small vocabulary of the suite: names that vary, and the kinds of file they name.

Names are single tokens of the tiny policy and mean nothing, so the only way to use the right one
is to copy it from the instruction or from what a command printed.
"""

from __future__ import annotations

import random

NAMES: tuple[str, ...] = tuple(
    """
    acorn agate alder amber anchor apple apron arrow aspen atlas azure badge bagel bamboo banjo
    barley basil basin beach beacon bean bear beaver bell berry birch bison blaze bloom bluff
    bonnet bottle boulder branch brass bread breeze brick bridge bronze brook brush bucket buckle
    butter button cabin cactus camel candle canoe canyon carbon cargo carrot castle cedar cello
    chalk cherry chess cider cinder citrus clay cliff clock clover coast cobalt cobra comet condor
    copper coral cotton cougar crane crater crayon creek cricket crow crown crystal cypress daisy
    dawn delta desert diamond dingo dragon drum dune eagle ebony elder ember emerald falcon
    feather fern ferry fiddle finch flame flint flute forest fossil fox frost galaxy garlic garnet
    geyser ginger glacier globe goose granite grape grove guitar hammer harbor harp hawk hazel
    hedge heron hickory honey horizon ibex indigo iris iron island ivory ivy jade jasmine jasper
    jewel juniper kayak kelp kettle kiwi koala ladder lagoon lantern larch laurel lemon leopard
    lichen lilac lily lime linen lion lizard llama lobster lotus lynx magnet mango maple marble
    marlin marsh meadow melon mesa meteor mint mirror moose mosaic moss motor nectar needle nickel
    nutmeg oak oasis oboe ocean olive onyx opal orchid osprey otter owl oyster paddle palm panda
    paper parrot pearl pebble pecan pepper petal piano pigeon pine planet plum pond poppy prairie
    prism puffin quartz quill rabbit radish raven reed reef ribbon ridge river robin rocket rose
    ruby saddle saffron salmon sandal sapphire scarf shell shore silver sparrow spruce squid stone
    storm sugar summit swan tango teal temple thistle thunder tiger timber topaz tower trout tulip
    tundra turtle umber valley velvet violet walnut walrus whale wheat willow winter wolf yarrow
    zebra zephyr zinc
    """.split()
)
"""Words that stand for files, keys and values; all lower case, all different."""

VERBS: tuple[str, ...] = tuple(
    """
    archive assemble attach bundle collect compile compose deploy draw encode expand group import
    index label merge mix notify pick plot publish render schedule scan ship stamp tag
    transform translate update upload wrap
    """.split()
)
"""What scripts are called in some demonstrations of the warm start; a name says nothing about
what the script asks for."""

DOCUMENTS: tuple[str, ...] = ("notes.md", "guide.md", "rules.md", "readme.md", "spec.md")
"""Names of the file that may hold a rule which the instruction does not repeat."""


class NamePool:
    """Draws names without repetition, so that no two roles of a task share a word."""

    def __init__(self, rng: random.Random) -> None:
        self._names = rng.sample(NAMES, 40)

    def take(self) -> str:
        """The next unused name."""
        return self._names.pop()

    def many(self, count: int) -> list[str]:
        """The next `count` unused names."""
        return [self.take() for _ in range(count)]
