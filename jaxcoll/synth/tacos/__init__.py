"""TACOS: schedules by matching links with chunks (Won et al., MICRO 2024).

Read in this order: ``synthesizer`` (the public dataclass, and tens of thousands of ranks straight
to disk), ``search`` (one search, from a network to columns), ``state`` (tables of the kernels),
``rules`` (which chunk a link takes), ``lockstep`` (Algorithms 1 and 2 where all links cost the
same), ``events`` (where they do not).
"""

from jaxcoll.synth.tacos.synthesizer import Tacos

__all__ = ["Tacos"]
